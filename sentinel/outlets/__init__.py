"""Where verdicts go: metrics, history, people."""
