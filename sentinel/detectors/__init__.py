"""Detectors, one module each, named for what they find."""
