"""The path of the weights: recorder, saved checkpoints and principal directions."""
