"""The loss surface: directions, sampling, features, and models of saved checkpoints."""
