"""Prometheus, Alertmanager and their tools, started once per module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml
from programs import Restartable, find, free_port, is_ready, wait_for
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
    manager_urls: list[str]
    server: Restartable
    managers: list[Restartable]

    def sections(self) -> Iterator[tuple[str, str]]:
        """Titles and texts for the report of a failed test: where an alert got stuck."""
        folder = self.home.parent
        for log in sorted(folder.glob("*.log")):
            yield log.name, log.read_text(errors="replace")[-MAX_SECTION_CHARS:]
        api = f"{self.prometheus.url}/api/v1"
        urls = [f"{api}/{name}" for name in ("alerts", "alertmanagers", "targets")]
        for url in self.manager_urls:
            urls += [f"{url}/api/v2/{name}" for name in ("alerts", "status")]
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

    def repeats(self) -> list[dict]:
        """The webhook requests that state what one before them of the same group has stated."""
        stated, repeated = set(), []
        for request in self.receiver.accepted:
            if request.path.endswith(WEBHOOK_PATH):
                body = request.json
                alerts = frozenset((each["fingerprint"], each["status"]) for each in body["alerts"])
                repeated += [body] if (body["groupKey"], alerts) in stated else []
                stated.add((body["groupKey"], alerts))
        return repeated

    def wait_for_decisions(self) -> None:
        """Wait until every Alertmanager has decided again whether to send what fires now.

        The second one of a cluster decides 15 s after the first. A decision that has begun may not
        see what fires now, so each waits for two, of both receivers.
        """
        before = [*map(_decisions, self.manager_urls)]
        wait_for(
            "the decisions of Alertmanager",
            lambda: all(
                _decisions(url) >= count + 4
                for url, count in zip(self.manager_urls, before, strict=True)
            ),
        )

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
    """A Prometheus that scrapes every agent whose `$SENTINEL_HOME` is `home`, and Alertmanager.

    A module may have a number of Alertmanagers, `MANAGERS`, that form a cluster.
    """
    program, manager = find("prometheus"), find("alertmanager", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("stack")
    count = getattr(request.module, "MANAGERS", 1)
    url, *manager_urls = (f"http://127.0.0.1:{free_port()}" for _ in range(1 + count))
    peers = [f"127.0.0.1:{free_port()}" for _ in manager_urls]
    (folder / "home").mkdir(mode=0o700)
    (folder / "rules.yml").write_text(_with_short_interval(RULES.read_text()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_prometheus_config(folder, manager_urls)))
    with Receiver() as receiver, ExitStack() as programs:
        config = _alertmanager_config(folder, receiver.url)
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        managers = [
            Restartable(
                folder / f"alertmanager-{number}.log",
                manager,
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager-{number}",
                f"--web.listen-address={manager_urls[number].removeprefix('http://')}",
                f"--cluster.listen-address={peers[number] if count > 1 else ''}",
                f"--cluster.advertise-address={peers[number]}",
                *(f"--cluster.peer={peer}" for peer in peers),
                # They wait until the cluster has not changed for thirty of these intervals.
                "--cluster.gossip-interval=50ms",
                "--log.level=warn",
            )
            for number in range(count)
        ]
        server = Restartable(
            folder / "prometheus.log",
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--log.level=warn",
        )
        for each in (*managers, server):
            programs.callback(each.end)
        prometheus = Prometheus(url)
        wait_for("Prometheus", lambda: prometheus.ready)
        wait_for("Alertmanager", lambda: all(map(is_ready, manager_urls)))
        started = Stack(prometheus, receiver, folder / "home", manager_urls, server, managers)
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


def _prometheus_config(folder: Path, manager_urls: list[str]) -> dict:
    intervals = {
        "scrape_interval": SCRAPE_INTERVAL,
        "scrape_timeout": SCRAPE_INTERVAL,
        "evaluation_interval": SCRAPE_INTERVAL,
    }
    targets = [url.removeprefix("http://") for url in manager_urls]
    discovery = {"files": [f"{folder}/home/targets/*.json"], "refresh_interval": "1s"}
    return {
        "global": intervals,
        "rule_files": [f"{folder}/rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": targets}]}]},
        "scrape_configs": [{"job_name": "sentinel", "file_sd_configs": [discovery]}],
    }


def _read(url: str) -> str:
    try:
        return requests.get(url, timeout=10).text
    except requests.RequestException as error:
        return str(error)


def _decisions(url: str) -> float:
    """How often an Alertmanager has looked up what was sent, before it sends."""
    return float(
        re.search(r"^alertmanager_nflog_queries_total (.+)", _read(f"{url}/metrics"), re.MULTILINE)[
            1
        ]
    )
