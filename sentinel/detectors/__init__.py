"""Detectors, one a file, each named for what it finds."""
