"""Runs inside the trainer. Standard library only."""
