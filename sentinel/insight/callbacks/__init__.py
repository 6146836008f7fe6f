"""Callbacks that compute insight while a trainer of a framework runs."""
