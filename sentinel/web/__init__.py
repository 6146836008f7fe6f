"""What the agent serves over HTTP."""
