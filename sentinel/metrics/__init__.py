"""Run state and its Prometheus exposition."""
