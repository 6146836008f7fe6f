"""Readers of training logs, one module per format, and the parts that they share."""
