"""Commands from the agent, executed at a step."""
