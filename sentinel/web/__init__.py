"""HTTP server of the agent and its web page."""
