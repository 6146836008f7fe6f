"""What the agent polls: rings, liveness and launchers."""
