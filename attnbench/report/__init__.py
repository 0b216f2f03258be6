"""From records to what people read: tables, plots, HTML, terminal."""
