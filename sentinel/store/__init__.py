"""The agent's SQLite database."""
