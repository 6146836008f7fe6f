"""Catalogue in, text out: Prometheus rules, Grafana dashboards, runbooks, the reference."""
