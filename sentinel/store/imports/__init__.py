"""Logs of other tools, imported into databases that are cached and followed."""
