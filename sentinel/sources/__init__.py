"""Where records come from: live rings and log files, one format a file."""
