"""Sinks, one a file: each words one page as one unsent request."""
