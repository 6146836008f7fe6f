"""The process that records one notification at an experiment tracker, one tracker a module."""
