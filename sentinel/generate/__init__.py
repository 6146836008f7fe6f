"""Catalogue in, text out: Prometheus rules, Grafana dashboards."""
