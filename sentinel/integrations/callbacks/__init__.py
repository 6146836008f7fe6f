"""Callbacks of frameworks, as an alternative to the decorator."""
