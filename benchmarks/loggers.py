"""Loggers of numbers, each behind the same two functions: log and close.

Every factory takes a scratch directory. Nothing is sent over a network.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

Log = Callable[[int, dict[str, float]], None]
LoggerFactory = Callable[[str], tuple[Log, Callable[[], None]]]

NAMES = [f"train/metric_{number}" for number in range(20)]


def packed(_directory: str) -> tuple[Log, Callable[[], None]]:
    """The lower bound: the numbers as float64 in memory that another process may read."""
    memory = mmap.mmap(-1, 1 << 20)
    layouts = {count: struct.Struct(f"{count}d") for count in range(len(NAMES) + 1)}

    def log(_step: int, values: dict[str, float]) -> None:
        layouts[len(values)].pack_into(memory, 0, *values.values())

    return log, memory.close


def sentinel(directory: str) -> tuple[Log, Callable[[], None]]:
    os.environ |= {"SENTINEL_HOME": directory, "SENTINEL_RUNTIME_DIR": f"/dev/shm/{os.getpid()}"}
    import shutil

    import sentinel

    run = sentinel.monitor(agent=False)
    run.__enter__()

    def close() -> None:
        run.__exit__(None, None, None)
        shutil.rmtree(os.environ["SENTINEL_RUNTIME_DIR"])

    return (lambda step, values: sentinel.log(values, step)), close


def prometheus_client(_directory: str) -> tuple[Log, Callable[[], None]]:
    """Gauges with labels bound beforehand, in the trainer's process."""
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    gauges = {
        name: Gauge(name.replace("/", "_"), "x", ["rank"], registry=registry).labels("0")
        for name in NAMES
    }

    def log(_step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            gauges[name].set(value)

    return log, (lambda: None)


def tensorboard(directory: str) -> tuple[Log, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(directory)

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def trackio(directory: str) -> tuple[Log, Callable[[], None]]:
    os.environ |= {"TRACKIO_DIR": directory, "HF_HUB_OFFLINE": "1"}
    import trackio as theirs

    with redirect_stdout(StringIO()):
        theirs.init(project="bench", embed=False)
    return (lambda step, values: theirs.log(values, step=step)), theirs.finish


def wandb(directory: str) -> tuple[Log, Callable[[], None]]:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    import wandb as theirs

    settings = theirs.Settings(silent=True, x_disable_stats=True, console="off")
    run = theirs.init(project="bench", dir=directory, mode="offline", settings=settings)
    return (lambda step, values: run.log(values, step=step)), run.finish


def mlflow_environ(directory: str) -> dict[str, str]:
    """Runs are stored in a folder below the directory, and nothing is reported to mlflow."""
    # It creates its first experiment with the folder.
    store = f"file://{directory}/mlruns"
    own = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return own | {"MLFLOW_TRACKING_URI": store}


def mlflow(directory: str) -> tuple[Log, Callable[[], None]]:
    """Runs in files, the only store of mlflow-skinny without a server."""
    os.environ |= mlflow_environ(directory)
    import mlflow as theirs

    theirs.start_run()
    return (lambda step, values: theirs.log_metrics(values, step)), theirs.end_run


LOGGERS: dict[str, LoggerFactory] = {
    "sentinel": sentinel,
    "wandb": wandb,
    "trackio": trackio,
    "TensorBoard": tensorboard,
    "mlflow": mlflow,
    "prometheus_client": prometheus_client,
    "packed into memory": packed,
}
