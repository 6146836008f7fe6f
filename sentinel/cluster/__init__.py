"""Cluster: agents of several nodes meet over torch.distributed, and one of them judges the run."""
