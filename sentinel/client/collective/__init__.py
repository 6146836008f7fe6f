"""The opt-in gather over torch.distributed."""
