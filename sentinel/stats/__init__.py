"""Streaming statistics of bounded memory, one a file."""
