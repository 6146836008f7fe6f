"""One log format a file, and what the formats share."""
