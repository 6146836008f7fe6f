"""Reports and comparisons of runs: what pages, commands and files show of stored results."""
