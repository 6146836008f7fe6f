"""How records travel from a trainer to its agent."""
