"""Combines the records of all ranks into records of the run."""
