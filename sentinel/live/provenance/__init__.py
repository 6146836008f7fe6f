"""Where a run comes from: its commit, command line, package versions, hardware and image."""
