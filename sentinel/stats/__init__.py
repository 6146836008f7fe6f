"""Streaming statistics of bounded memory, one module each."""
