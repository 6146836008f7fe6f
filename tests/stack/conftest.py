"""Prometheus, Alertmanager and their tools, started once per session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml
from programs import find, free_port, running, wait_for
from prometheus import Prometheus
from support.webhook_receiver import Receiver

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
SCRAPE_INTERVAL = "1s"
"""Interval of scrapes, and their timeout, which a busy machine sometimes exceeds."""
SLACK_PATH, WEBHOOK_PATH = "/slack", "/webhook"
MAX_SECTION_CHARS = 4000
_STACK = pytest.StashKey["Stack"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the state of Prometheus and Alertmanager to the report of a failed test."""
    report = yield
    if report.failed and "stack" in item.fixturenames and _STACK in item.session.stash:
        report.sections += item.session.stash[_STACK].sections()
    return report


@pytest.fixture(scope="session")
def promtool():
    return find("promtool")


@pytest.fixture(scope="session")
def amtool():
    return find("amtool")


@dataclass(frozen=True)
class Stack:
    """Prometheus and Alertmanager as shipped, at short intervals, with a local receiver."""

    prometheus: Prometheus
    receiver: Receiver
    home: Path
    manager_url: str

    def sections(self) -> Iterator[tuple[str, str]]:
        """Titles and texts for the report of a failed test: where an alert got stuck."""
        folder = self.home.parent
        for log in ("prometheus.log", "alertmanager.log"):
            yield log, (folder / log).read_text(errors="replace")[-MAX_SECTION_CHARS:]
        api, manager_api = f"{self.prometheus.url}/api/v1", f"{self.manager_url}/api/v2"
        urls = [f"{api}/{name}" for name in ("alerts", "alertmanagers", "targets")]
        urls += [f"{manager_api}/{name}" for name in ("alerts", "status")]
        for registration in self.home.glob("runs/*/agent.json"):
            urls.append(f"{json.loads(registration.read_text())['url']}/api/run")
        for url in urls:
            yield url, _read(url)[:MAX_SECTION_CHARS]

    def alerts(self, run: str) -> list[dict]:
        """The alerts of the run that the webhook received, in order."""
        return [
            alert
            for request in self.receiver.accepted
            if request.path.endswith(WEBHOOK_PATH)
            for alert in request.json["alerts"]
            if alert["labels"].get("run") == run
        ]

    def slack_messages(self, run: str) -> list[dict]:
        """The messages of the shipped Slack receiver that name the run, in order."""
        messages = [
            request.json["attachments"][0]
            for request in self.receiver.accepted
            if request.path.endswith(SLACK_PATH)
        ]
        return [message for message in messages if run in message["title"]]


@pytest.fixture(scope="module")
def stack(request, tmp_path_factory):
    """Alertmanager, and a Prometheus that scrapes every agent whose `$SENTINEL_HOME` is `home`."""
    program, manager = find("prometheus"), find("alertmanager", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("stack")
    ports = free_port(), free_port()
    with Receiver() as receiver:
        (folder / "home").mkdir(mode=0o700)
        (folder / "rules.yml").write_text(_with_short_interval(RULES.read_text()))
        (folder / "alertmanager.yml").write_text(
            yaml.safe_dump(_alertmanager_config(folder, receiver.url))
        )
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_prometheus_config(folder, ports[1])))
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
            started = Stack(prometheus, receiver, folder / "home", f"http://127.0.0.1:{ports[1]}")
            request.session.stash[_STACK] = started
            yield started


def _with_short_interval(rules: str) -> str:
    """The shipped rules, evaluated at `SCRAPE_INTERVAL`."""
    loaded = yaml.safe_load(rules)
    for group in loaded["groups"]:
        group["interval"] = SCRAPE_INTERVAL
    return yaml.safe_dump(loaded)


def _alertmanager_config(folder: Path, url: str) -> dict:
    """The shipped configuration; its receiver also has a webhook."""
    config = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    config["route"] |= {"group_wait": "2s", "group_interval": "2s"}
    (people,) = (each for each in config["receivers"] if each["name"] == "people")
    (folder / "slack_url").write_text(f"{url}{SLACK_PATH}")
    people["slack_configs"][0]["api_url_file"] = str(folder / "slack_url")
    people["webhook_configs"] = [{"url": f"{url}{WEBHOOK_PATH}", "send_resolved": True}]
    return config


def _prometheus_config(folder: Path, manager_port: int) -> dict:
    intervals = {
        "scrape_interval": SCRAPE_INTERVAL,
        "scrape_timeout": SCRAPE_INTERVAL,
        "evaluation_interval": SCRAPE_INTERVAL,
    }
    managers = [{"static_configs": [{"targets": [f"127.0.0.1:{manager_port}"]}]}]
    discovery = {"files": [f"{folder}/home/targets/*.json"], "refresh_interval": "1s"}
    return {
        "global": intervals,
        "rule_files": [f"{folder}/rules.yml"],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": [{"job_name": "sentinel", "file_sd_configs": [discovery]}],
    }


def _read(url: str) -> str:
    try:
        return requests.get(url, timeout=10).text
    except requests.RequestException as error:
        return str(error)


def _ready(port: int) -> bool:
    with suppress(requests.ConnectionError, requests.Timeout):
        return requests.get(f"http://127.0.0.1:{port}/-/ready", timeout=240).ok
    return False
