"""Objects for a cluster with the Prometheus Operator and the dashboards sidecar of Grafana."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tools.generate.yaml_text import yaml_text


def prometheus_rule(groups: list[dict[str, Any]]) -> str:
    """Text of the PrometheusRule with these groups of rules."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sentinel"},
        "spec": {"groups": groups},
    }
    return yaml_text(rule, "Written by `make generate`.")


def dashboards_kustomization(names: Iterable[str]) -> str:
    """Text of the kustomization with one ConfigMap for each of these dashboards."""
    maps = [f"  - {{name: sentinel-{name}, files: [{name}.json]}}" for name in sorted(names)]
    return "\n".join(
        [
            "# ConfigMaps for the dashboards sidecar of Grafana's Helm chart.",
            "apiVersion: kustomize.config.k8s.io/v1beta1",
            "kind: Kustomization",
            "generatorOptions:",
            "  disableNameSuffixHash: true",
            '  labels: {grafana_dashboard: "1"}',
            "configMapGenerator:",
            *maps,
            "",
        ]
    )
