"""Checkpoint and stop commands that a critical case triggers."""
