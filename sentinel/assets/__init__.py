"""What a cluster runs beside the agents: rules, dashboards and deployments, with its settings.

The files are those of `deploy` and `grafana` in the repository, where they hold the defaults. The
wheel holds a copy of them.
"""
