"""Sinks, one receiver a file: each renders a notification as one unsent request."""
