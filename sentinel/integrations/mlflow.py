"""MLflow: metrics that reach its client, whichever logging function was called.

MLflow uses step 0 if none is given. Its system metrics are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture
from sentinel.client.capture.tracker_run import (
    TrackerRunReporter,
    absolute_path,
    without_password,
)

FRAMEWORK = "mlflow.tracking.client"

SYSTEM_METRIC_PREFIX = "system/"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    tracker = TrackerCapture(patcher)
    runs = TrackerRunReporter(patcher)

    def on_log_metric(  # noqa: PLR0913, PLR0917 - those of MLflow
        client: Any,
        run_id: Any,
        key: Any,
        value: Any,
        timestamp: Any = None,  # noqa: ARG001
        step: Any = None,
        *__: Any,
        **___: Any,
    ) -> None:
        tracker.log({key: value}, step)
        runs.report(run_id, lambda: _describe(client, run_id))

    def on_log_batch(
        client: Any,
        run_id: Any,
        metrics: Iterable[Any] = (),
        *__: Any,
        **___: Any,
    ) -> None:
        for step, values in _group_by_step(metrics).items():
            tracker.log(values, step)
        runs.report(run_id, lambda: _describe(client, run_id))

    client_class = sys.modules[FRAMEWORK].MlflowClient
    patcher.wrap(client_class, "log_metric", before=on_log_metric)
    patcher.wrap(client_class, "log_batch", before=on_log_batch)


def _describe(client: Any, run_id: Any) -> dict[str, str | None]:
    return {"mlflow_run": run_id, "mlflow_uri": _absolute_uri(client.tracking_uri)}


def _absolute_uri(uri: str) -> str:
    """The address of the store, also for a process with another working directory.

    >>> _absolute_uri("https://ana:secret@mlflow.example"), _absolute_uri("sqlite:////a/mlflow.db")
    ('https://mlflow.example', 'sqlite:////a/mlflow.db')
    """
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite"):
        return f"{scheme}:///{absolute_path(path)}"
    return without_password(uri) if ":" in uri else absolute_path(uri)


def _group_by_step(metrics: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    values: dict[Any, dict[str, Any]] = {}
    for metric in metrics if isinstance(metrics, (list, tuple)) else ():
        if not metric.key.startswith(SYSTEM_METRIC_PREFIX):
            values.setdefault(metric.step, {})[metric.key] = metric.value
    return values
