"""Grafana dashboards, built from the signal catalogue and the detectors: one board a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tools.generate.boards.fleet import fleet_board
from tools.generate.boards.ranks import ranks_board
from tools.generate.boards.run_health import run_health_board
from tools.generate.boards.sentinel_board import sentinel_board
from tools.generate.boards.signal_boards import rl_board, training_board
from tools.generate.boards.system import system_board
from tools.generate.detector_docs import DetectorDoc


def boards(docs: Sequence[DetectorDoc]) -> dict[str, str]:
    """JSON of each dashboard by the name of its file."""
    return {
        "fleet": fleet_board(),
        "run-health": run_health_board(docs),
        "rl": rl_board(docs),
        "training": training_board(docs),
        "ranks": ranks_board(),
        "system": system_board(docs),
        "sentinel": sentinel_board(),
    }


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
