"""Checkup: what could keep a run of this machine from being watched, one kind of it a file."""
