"""Curves of the stored history: buckets of records, their decoding and merging, and grids."""
