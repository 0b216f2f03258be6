"""What records say beyond themselves, as numbers with intervals; the words are the report's."""
