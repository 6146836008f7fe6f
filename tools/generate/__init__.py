"""Writes Prometheus rules, Grafana dashboards, runbooks and reference pages from the code."""
