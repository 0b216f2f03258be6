"""Bundles: an exported model with what proves it."""
