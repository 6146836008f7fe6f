"""Measurements on the weights of a model, and the state in which they are taken."""
