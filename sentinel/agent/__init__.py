"""The agent process of a run, and how other processes start and find it."""
