"""Current state of a run, as Prometheus metrics and as JSON."""
