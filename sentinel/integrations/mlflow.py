"""MLflow: metrics that reach its client, whichever logging function was called.

MLflow uses step 0 if none is given. Its system metrics are ignored.
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
    """Install the patches."""
    tracker = TrackerCapture(patcher)

    def on_log_metric(
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

    def on_log_batch(
        _: Any,
        run_id: Any,  # noqa: ARG001
        metrics: Iterable[Any] = (),
        *__: Any,
        **___: Any,
    ) -> None:
        for step, values in _group_by_step(metrics).items():
            tracker.log(values, step)

    client = sys.modules[FRAMEWORK].MlflowClient
    patcher.wrap(client, "log_metric", before=on_log_metric)
    patcher.wrap(client, "log_batch", before=on_log_batch)


def _group_by_step(metrics: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    values: dict[Any, dict[str, Any]] = {}
    for metric in metrics if isinstance(metrics, (list, tuple)) else ():
        if not metric.key.startswith(SYSTEM_METRIC_PREFIX):
            values.setdefault(metric.step, {})[metric.key] = metric.value
    return values
