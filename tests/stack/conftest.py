"""The monitoring programs that users have, once per session."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml
from programs import find, free_port, running, wait_for
from prometheus import Prometheus
from support.webhook_receiver import Receiver

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
SOON = "1s"
"""Between scrapes; and how long one may take, which a busy machine sometimes exceeds."""


@pytest.fixture(scope="session")
def promtool():
    return find("promtool")


@pytest.fixture(scope="session")
def amtool():
    return find("amtool")


@dataclass(frozen=True)
class Stack:
    """Prometheus with our rules, Alertmanager, and whoever it tells; in a hurry."""

    prometheus: Prometheus
    receiver: Receiver
    home: Path

    def told(self, alert: str, status: str, run: str) -> list[dict]:
        """What the receiver has been told of that alert of that run."""
        return [
            one
            for request in self.receiver.accepted
            for one in request.json["alerts"]
            if (one["labels"]["alertname"], one["status"]) == (alert, status)
            and one["labels"].get("run") == run
        ]


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Alertmanager and Prometheus, ready, scraping every agent whose `$SENTINEL_HOME` is `home`."""
    program, manager = find("prometheus"), find("alertmanager", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("stack")
    ports = free_port(), free_port()
    with Receiver() as receiver:
        (folder / "home").mkdir(mode=0o700)
        (folder / "rules.yml").write_text(_hurried(RULES.read_text()))
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(_telling(receiver.url)))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_scraping(folder, ports[1])))
        with (
            running(
                folder / "alertmanager.log",
                manager,
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager",
                f"--web.listen-address=127.0.0.1:{ports[1]}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ),
            running(
                folder / "prometheus.log",
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{ports[0]}",
                "--log.level=warn",
            ),
        ):
            prometheus = Prometheus(f"http://127.0.0.1:{ports[0]}")
            wait_for("Prometheus", lambda: prometheus.ready)
            wait_for("Alertmanager", lambda: _ready(ports[1]))
            yield Stack(prometheus, receiver, folder / "home")


def _hurried(rules: str) -> str:
    """The shipped rules, evaluated often."""
    loaded = json.loads(rules)
    for group in loaded["groups"]:
        group["interval"] = SOON
    return json.dumps(loaded)


def _telling(url: str) -> dict:
    route = {"receiver": "test", "group_by": ["alertname", "run"]}
    patience = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    hook = {"url": url, "send_resolved": True}
    return {"route": route | patience, "receivers": [{"name": "test", "webhook_configs": [hook]}]}


def _scraping(folder: Path, manager_port: int) -> dict:
    often = {"scrape_interval": SOON, "scrape_timeout": SOON, "evaluation_interval": SOON}
    managers = [{"static_configs": [{"targets": [f"127.0.0.1:{manager_port}"]}]}]
    found = {"files": [f"{folder}/home/targets/*.json"], "refresh_interval": "1s"}
    return {
        "global": often,
        "rule_files": [f"{folder}/rules.yml"],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": [{"job_name": "sentinel", "file_sd_configs": [found]}],
    }


def _ready(port: int) -> bool:
    with suppress(requests.ConnectionError, requests.Timeout):
        return requests.get(f"http://127.0.0.1:{port}/-/ready", timeout=60).ok
    return False
