"""The built-in runtimes."""
