"""The built-in exporters."""
