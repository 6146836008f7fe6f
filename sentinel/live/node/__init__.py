"""Measurements of the node: GPUs, processors, memory, network and disks."""
