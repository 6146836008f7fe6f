"""Cases that the sink `alertmanager` sends, as a real Alertmanager shows and forwards them."""

from __future__ import annotations

import json
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import ClassVar

import pytest
import requests
import yaml
from programs import find, free_port, is_ready, run_program, running, wait_for
from support.notifications import CONTEXT, make_notification, with_diagnosis
from support.webhook_receiver import Receiver

from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.sink_worker import DeliveryTiming, SinkWorker
from sentinel.sinks.alertmanager import Alertmanager
from sentinel.store.database import connect

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

WARNING = replace(make_notification(severity=Severity.WARNING, rank=3), context=CONTEXT)
OPENED_NOW = replace(WARNING, incident=replace(WARNING.incident, opened_time=time.time()))
CRITICAL = replace(
    with_diagnosis(OPENED_NOW),
    reason=NotificationReason.ESCALATED,
    incident=replace(OPENED_NOW.incident, severity=Severity.CRITICAL),
)
RESOLVED = replace(
    CRITICAL,
    reason=NotificationReason.RESOLVED,
    incident=replace(CRITICAL.incident, resolved_step=130, resolved_time=time.time() + 0.001),
)


class OftenRefreshed(Alertmanager):
    """The sink with a short interval."""

    refresh_seconds: ClassVar[float] = 0.2


class Cluster:
    """One Alertmanager that a test can restart, and the receiver of its notifications."""

    def __init__(self, folder, receiver):
        self.folder, self.receiver = folder, receiver
        self.url = f"http://127.0.0.1:{free_port()}"
        self._program = find("alertmanager", "prometheus-alertmanager")
        route = {"receiver": "test", "group_by": ["alertname", "run", "severity"]}
        intervals = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
        webhook = {"url": receiver.url, "send_resolved": True}
        config = {
            "route": route | intervals,
            "receivers": [{"name": "test", "webhook_configs": [webhook]}],
        }
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))

    @contextmanager
    def running(self):
        with running(
            self.folder / "log",
            self._program,
            f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/data",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ):
            wait_for("Alertmanager", lambda: is_ready(self.url))
            yield

    def severities(self):
        alerts = requests.get(f"{self.url}/api/v2/alerts", timeout=240).json()
        return [each["labels"]["severity"] for each in alerts]

    def forwarded(self):
        return [
            (alert["labels"]["severity"], alert["status"])
            for request in self.receiver.accepted
            for alert in request.json["alerts"]
        ]


@pytest.fixture
def cluster(tmp_path):
    with Receiver() as receiver:
        yield Cluster(tmp_path, receiver)


@pytest.fixture
def worker(cluster, tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        sink = OftenRefreshed(url=cluster.url)
        timing = DeliveryTiming(min_interval_seconds=0.0)
        yield SinkWorker("alertmanager", sink, connection, Counters(), time.time, timing)


def send(worker, *notifications):
    for notification in notifications:
        outbox.enqueue(worker.connection, notification, ["alertmanager"], time.time())
        worker.deliver_next()


def test_a_case_is_firing_then_critical_then_resolved(cluster, worker):
    with cluster.running():
        send(worker, OPENED_NOW)
        (alert,) = json.loads(
            run_program(
                find("amtool"), "alert", f"--alertmanager.url={cluster.url}", "-o", "json"
            ).stdout
        )
        assert alert["labels"] == {
            "alertname": "SentinelCase",
            "run": "grpo-7b",
            "detector": "kl_blowup",
            "severity": "warning",
            "rank": "3",
        }
        assert alert["annotations"]["summary"].startswith("Warning: KL is 2 nats, run grpo-7b")
        wait_for("firing", lambda: ("warning", "firing") in cluster.forwarded())

        send(worker, CRITICAL)
        assert cluster.severities() == ["critical"]
        wait_for("critical", lambda: ("critical", "firing") in cluster.forwarded())

        send(worker, RESOLVED)
        assert cluster.severities() == []
        wait_for("resolved", lambda: ("critical", "resolved") in cluster.forwarded())


def test_a_firing_case_is_there_again_after_a_restart_of_alertmanager(cluster, worker):
    with cluster.running():
        send(worker, OPENED_NOW, CRITICAL)
        assert cluster.severities() == ["critical"]
    with cluster.running():
        assert cluster.severities() == []
        wait_for("the refresh", lambda: worker.deliver_next() and cluster.severities())
        assert cluster.severities() == ["critical"]
        send(worker, RESOLVED)
        assert cluster.severities() == []
        worker.deliver_next()
        assert cluster.severities() == []
