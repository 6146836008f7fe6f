"""MLflow: metrics that reach its client, by whichever of its functions they were logged.

MLflow puts 0 for a step that nobody gave. What it measures of the machine is not the training's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture

FRAMEWORK = "mlflow.tracking.client"

SYSTEM_METRIC_PREFIX = "system/"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    tracker = TrackerCapture(patcher)

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
        tracker.log({key: value}, step)

    def several(_: Any, run_id: Any, metrics: Iterable[Any] = (), *__: Any, **___: Any) -> None:  # noqa: ARG001
        for step, values in _group_by_step(metrics).items():
            tracker.log(values, step)

    client = sys.modules[FRAMEWORK].MlflowClient
    patcher.wrap(client, "log_metric", before=one)
    patcher.wrap(client, "log_batch", before=several)


def _group_by_step(metrics: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for metric in metrics if isinstance(metrics, (list, tuple)) else ():
        if not metric.key.startswith(SYSTEM_METRIC_PREFIX):
            found.setdefault(metric.step, {})[metric.key] = metric.value
    return found
