"""A Prometheus with the scenario."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs import find, free_port, run_program, running, wait_for
from prometheus import Prometheus
from scenario import MAIN_RUN, openmetrics

VALUES = {
    "$cluster": ".*",
    "$algorithm": ".*",
    "$run": MAIN_RUN.name,
    "$attempt": ".*",
    "$rank": ".*",
    "$__rate_interval": "4m",
    "$__range": "2h",
}
"""Values of the variables of dashboards, as Grafana sends them."""


@contextmanager
def filled_prometheus(folder: Path) -> Iterator[Prometheus]:
    """Starts it on blocks that promtool writes; its files are in the folder."""
    (folder / "scenario.om").write_text(openmetrics())
    (folder / "prometheus.yml").write_text("{}")
    arguments = ("tsdb", "create-blocks-from", "openmetrics", str(folder / "scenario.om"))
    filled = run_program(find("promtool"), *arguments, str(folder / "data"))
    assert filled.returncode == 0, filled.stdout
    prometheus = Prometheus(f"http://127.0.0.1:{free_port()}")
    with running(
        folder / "log",
        find("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={prometheus.url.removeprefix('http://')}",
        # Blocks hold no marks of series that end: they end with the scrape.
        "--query.lookback-delta=30s",
        "--log.level=warn",
    ):
        wait_for("Prometheus", lambda: prometheus.ready)
        yield prometheus
