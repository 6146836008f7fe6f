"""Importance of settings: collected runs, forests, and the worker of the page."""
