"""Delay from a value that a training logs to the webhook, through Prometheus and Alertmanager.

    python benchmarks/prometheus_delay.py [--changes 20] [--interval 250ms]

Needs prometheus and prometheus-alertmanager. Prometheus has the files of `sentinel assets export`
at that interval of scrapes and evaluations; Alertmanager waits for no further alerts of a group.
Each change is a training of its own with its agent, which has no sink: when Prometheus has scraped
it, the training logs NaN, which is critical, and the time of the first one. Prints the seconds of
each change, median and maximum. On a machine that is short of processor time, scrapes exceed the
interval: prefix `chrt --rr 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "stack"))

from programs import find, free_port, running, wait_for
from prometheus import Prometheus
from support.webhook_receiver import Receiver

from sentinel.assets.export import export

TRAINER = """
import os, random, sys, time
import sentinel

go, changed = sys.argv[1:]

@sentinel.monitor
def train():
    step, now = 0, None
    while True:
        step += 1
        loss = 1.0 + 1.0 / step + random.gauss(0.0, 0.02)
        if now is None and os.path.exists(go):
            now = time.monotonic()
            with open(changed, "w") as file:
                file.write(str(now))
        sentinel.log({"loss": loss if now is None else float("nan")}, step=step)
        time.sleep(0.02)

train()
"""
MIN_STEPS = 20
"""Steps before the change."""


def is_ready(url: str) -> bool:
    """Whether the program at this address has started."""
    return Prometheus(url).ready


@contextmanager
def prometheus(folder: Path, interval: str, webhook: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the agents of the folder, and an Alertmanager with that webhook."""
    manager, server = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    # Prometheus watches a directory only if it exists.
    (folder / "targets").mkdir(mode=0o700)
    options: dict[str, str | None] = {
        "prometheus.interval": interval,
        "prometheus.alertmanager": manager.removeprefix("http://"),
        "prometheus.targets": str(folder / "targets"),
    }
    export(folder, ["prometheus"], options)
    receiver = {"name": "hook", "webhook_configs": [{"url": webhook}]}
    route = {"receiver": "hook", "group_by": ["alertname", "run", "case"], "group_wait": "0s"}
    config = folder / "alertmanager.yml"
    config.write_text(json.dumps({"route": route, "receivers": [receiver]}))
    with (
        running(
            folder / "alertmanager.log",
            find("alertmanager", "prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={folder}/alertmanager",
            f"--web.listen-address={manager.removeprefix('http://')}",
            "--cluster.listen-address=",
        ),
        running(
            folder / "prometheus.log",
            find("prometheus"),
            f"--config.file={folder}/deploy/prometheus/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={server.removeprefix('http://')}",
        ),
    ):
        wait_for("Prometheus", lambda: is_ready(server))
        wait_for("Alertmanager", lambda: is_ready(manager))
        yield Prometheus(server)


def arrival(receiver: Receiver, run: str) -> float | None:
    """Monotonic time of the first alert about the NaN of that run."""
    for request in receiver.accepted:
        for alert in request.json["alerts"]:
            if {"run": run, "detector": "nan_or_inf"}.items() <= alert["labels"].items():
                return request.time
    return None


def delay(folder: Path, server: Prometheus, receiver: Receiver, run: str) -> float:
    """Seconds from the NaN of one training to its alert."""
    environ = {
        **os.environ,
        "SENTINEL_HOME": str(folder),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "SENTINEL_RUN_ID": run,
    }
    go, changed = folder / f"{run}-go", folder / f"{run}-changed"
    steps = f'sentinel_steps_total{{run="{run}"}} > {MIN_STEPS}'
    registration = folder / "runs" / run / "agent.json"
    command = [sys.executable, "-c", TRAINER, str(go), str(changed)]
    with running(folder / f"{run}.log", *command, env=environ):
        wait_for(f"the scrape of {run}", lambda: server.instant_query(steps))
        wait_for(f"the registration of {run}", registration.exists)
        agent = psutil.Process(json.loads(registration.read_text())["pid"])
        go.touch()
        arrived = wait_for(f"the alert of {run}", lambda: arrival(receiver, run))
    agent.kill()
    agent.wait()
    return arrived - float(changed.read_text())


def main() -> None:
    """Measure each change, and print the delays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--interval", default="250ms")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sn-") as name, Receiver() as receiver:
        folder = Path(name)
        with prometheus(folder, arguments.interval, receiver.url) as server:
            runs = [f"change-{number}" for number in range(arguments.changes)]
            delays = [delay(folder, server, receiver, run) for run in runs]
    print(*(f"{each:.2f}" for each in delays))
    print(
        f"{len(delays)} changes at intervals of {arguments.interval}: "
        f"median {median(delays):.2f} s, maximum {max(delays):.2f} s"
    )


if __name__ == "__main__":
    main()
