"""What is stored of runs: the SQLite database, summaries, notes and results of insight."""
