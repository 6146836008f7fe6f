"""Replays of runs with other settings, and the settings to recommend within a budget."""
