"""A Prometheus with the hour of the scenario."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs import find, free_port, run_program, running, wait_for
from prometheus import Prometheus
from scenario import openmetrics
from support.results import RUN

HOUR = {
    "$run": RUN,
    "$rank": ".*",
    "$__rate_interval": "2m",
    "$__range": "1h",
    "$__interval": "30s",
}
"""Values of the variables of dashboards."""


@contextmanager
def prometheus_of_the_hour(folder: Path) -> Iterator[Prometheus]:
    """Starts it on blocks that promtool writes; its files are in the folder."""
    (folder / "hour.om").write_text(openmetrics())
    (folder / "prometheus.yml").write_text("{}")
    arguments = ("tsdb", "create-blocks-from", "openmetrics", f"{folder}/hour.om", f"{folder}/data")
    filled = run_program(find("promtool"), *arguments)
    assert filled.returncode == 0, filled.stdout
    prometheus = Prometheus(f"http://127.0.0.1:{free_port()}")
    with running(
        folder / "log",
        find("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={prometheus.url.removeprefix('http://')}",
        "--log.level=warn",
    ):
        wait_for("Prometheus", lambda: prometheus.ready)
        yield prometheus
