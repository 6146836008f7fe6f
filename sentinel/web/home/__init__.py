"""The home page: the list of runs, their comparison, and what explains their outcomes."""
