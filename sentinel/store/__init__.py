"""What is stored of runs: the SQLite database, summaries, notes, baselines and results of insight."""
