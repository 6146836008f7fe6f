"""Transports, one file each: send one delivery once, within a deadline."""
