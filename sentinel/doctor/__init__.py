"""Checks of what could prevent a run from being monitored."""
