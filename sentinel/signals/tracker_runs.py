"""Metadata that states to which run of an experiment tracker the training logs."""

from __future__ import annotations

from collections.abc import Mapping

TRACKER_RUN_KEYS = (
    "wandb_run",
    "wandb_url",
    "wandb_offline",
    "mlflow_run",
    "mlflow_uri",
    "tensorboard_dir",
    "trackio_project",
    "trackio_run",
    "trackio_run_id",
    "trackio_server",
)
"""`wandb_run` is entity/project/id, `wandb_offline` is "yes" or empty, `mlflow_uri` where MLflow
stores the run, `tensorboard_dir` an absolute path, and `trackio_server` the id of a Space or the
URL of a server, empty for files of this machine. None of them holds a password."""


def tracker_runs(metadata: Mapping[str, str | float]) -> dict[str, str]:
    """Those of the metadata of a run that name its runs at trackers."""
    return {name: str(metadata[name]) for name in TRACKER_RUN_KEYS if name in metadata}
