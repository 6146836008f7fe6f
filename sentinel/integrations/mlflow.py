"""MLflow: metrics that reach its client, by whichever of its functions they were logged.

MLflow puts 0 for a step that nobody gave. What it measures of the machine is not the training's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.tracker import Tracker

FRAMEWORK = "mlflow.tracking.client"

OF_THE_MACHINE = "system/"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    tracker = Tracker(tap)

    def one(
        _: Any,
        run_id: Any,  # noqa: ARG001
        key: Any,
        value: Any,
        timestamp: Any = None,  # noqa: ARG001
        step: Any = None,
        *__: Any,
        **___: Any,
    ) -> None:
        tracker.hear({key: value}, step)

    def several(_: Any, run_id: Any, metrics: Iterable[Any] = (), *__: Any, **___: Any) -> None:  # noqa: ARG001
        for step, values in _by_step(metrics).items():
            tracker.hear(values, step)

    client = sys.modules[FRAMEWORK].MlflowClient
    tap.watch(client, "log_metric", before=one)
    tap.watch(client, "log_batch", before=several)


def _by_step(metrics: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for metric in metrics if isinstance(metrics, (list, tuple)) else ():
        if not metric.key.startswith(OF_THE_MACHINE):
            found.setdefault(metric.step, {})[metric.key] = metric.value
    return found
