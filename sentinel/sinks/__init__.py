"""Sinks, one file per receiver: each renders a notification as one unsent delivery."""
