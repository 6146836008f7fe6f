"""What is measured on the weights of a model, and the state that it is measured in."""
