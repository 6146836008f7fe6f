"""Causes of incidents, one module each."""
