"""The logs below a folder as runs: search, imports, list and views."""
