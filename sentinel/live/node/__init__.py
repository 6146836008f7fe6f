"""Measurements of the node: GPUs, processors, memory and disks."""
