"""Agents of several nodes: one head evaluates the run, followers send it their records."""
