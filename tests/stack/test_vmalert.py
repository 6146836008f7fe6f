"""The exported rules on VictoriaMetrics and vmalert."""

from __future__ import annotations

import itertools
import json
import time

import pytest
import requests
from programs import find, free_port, run_program, running, wait_for
from prometheus import Prometheus
from prometheus_client import start_http_server
from support.expositions import make_exposition
from support.results import DIAGNOSIS, RUN, case_result, make_result
from support.webhook_receiver import Receiver

from sentinel.assets.export import export
from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from tools.generate.agent_alerts import AGENT_ALERTS
from tools.generate.recording_rules import RECORDING_RULES

STEPS = itertools.count(101)
OF_AGENT = {alert.alert for alert in AGENT_ALERTS}
RECORDED = {rule.record for rule in RECORDING_RULES}

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]


@pytest.fixture
def exported(tmp_path):
    """The files of the target, for the agents of the directory."""
    options = {"prometheus.targets": f"{tmp_path}/targets", "prometheus.interval": "1s"}
    export(tmp_path, ["vmalert"], options)
    return tmp_path / "deploy" / "vmalert"


@pytest.fixture
def agent(tmp_path):
    """A run of two ranks with a case; its metrics are scraped."""
    heartbeat = make_result(Event.HEARTBEAT, values={"ranks_running": 2.0})
    counters = Counters()
    counters.set("sentinel_sink_deliveries_total", "slack:delivered", 1.0)
    counters.set("sentinel_client_overhead_seconds_total", "0", 1e-3)
    steps = [step_now(80), step_now(100)]
    exposition = make_exposition(heartbeat, *steps, case_result(), counters=counters)
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", exposition.registry)
    (tmp_path / "targets").mkdir()
    target = [{"targets": [f"127.0.0.1:{port}"]}]
    (tmp_path / "targets" / "run.json").write_text(json.dumps(target))
    yield exposition
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(tmp_path, exported, agent):
    """A VictoriaMetrics that has scraped the agent."""
    store = Prometheus(f"http://127.0.0.1:{free_port()}")
    with running(
        tmp_path / "store.log",
        find("victoria-metrics"),
        f"-storageDataPath={tmp_path}/data",
        f"-httpListenAddr={store.url.removeprefix('http://')}",
        f"-promscrape.config={exported}/scrape.yml",
        "-promscrape.config.strictParse",
        "-search.latencyOffset=1s",
    ):
        wait_for("VictoriaMetrics", lambda: store.ready)
        # A query for a series that is not there yet is cached for ten seconds.
        wait_for("a scrape", lambda: is_scraped(store), 30)
        yield store


def step_now(step):
    return make_result(step=step, time=time.time(), values={"loss": 1.0})


def is_scraped(store):
    targets = requests.get(f"{store.url}/api/v1/targets", timeout=240).json()["data"]
    return any(each["health"] == "up" for each in targets["activeTargets"])


def test_every_rule_is_valid(exported):
    checked = run_program(find("vmalert"), "-dryRun", f"-rule={exported}/rules.yml")

    assert checked.returncode == 0, checked.stdout


def test_a_case_is_one_alert_with_its_sentences_until_it_ends(tmp_path, exported, agent, store):
    """And every recording rule writes its series."""
    with (
        Receiver() as manager,
        running(
            tmp_path / "vmalert.log",
            find("vmalert"),
            f"-rule={exported}/rules.yml",
            f"-datasource.url={store.url}",
            f"-remoteWrite.url={store.url}",
            "-remoteWrite.flushInterval=200ms",
            f"-notifier.url={manager.url.rstrip('/')}",
            "-evaluationInterval=1s",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
        ),
    ):

        def sent():
            """The alerts on the training that the API of Alertmanager got, in order.

            On a slow machine the agent itself may have some.
            """
            alerts = [each for request in manager.accepted for each in request.json]
            return [each for each in alerts if each["labels"]["alertname"] not in OF_AGENT]

        def end():
            """Of an alert that fires, each next one is later."""
            ends = [each["endsAt"] for each in sent()]
            return ends[-1] if ends[-1] < max(ends) else None

        def recorded():
            agent.counters.add("sentinel_client_overhead_seconds_total", "0", 1e-3)
            agent.update(step_now(step := next(STEPS)))
            # Each time another query: an empty result is cached.
            found = store.instant_query(f'{{__name__=~"(run|fleet):sentinel.+|{step}"}}')
            return {each["metric"]["__name__"] for each in found} >= RECORDED

        (opened, *_) = wait_for("the case", sent)
        wait_for("the series of the recording rules", recorded)
        agent.update(case_result(NotificationReason.RESOLVED))
        wait_for("the end of the case", end)

    assert all(request.path.endswith("/api/v2/alerts") for request in manager.accepted)
    assert {(each["labels"]["alertname"], each["labels"]["case"]) for each in sent()} == {
        ("SentinelCase", "kl_blowup#1")
    }
    annotations = opened["annotations"]
    assert annotations["cause"] == DIAGNOSIS.cause
    assert annotations["summary"] == f"Policy collapse: KL is 2 nats, run {RUN}"
    assert "\n- The KL coefficient is 0.0001.\nWhat to do: Go back." in annotations["description"]
    assert (annotations["onset_step"], annotations["last_good_step"]) == ("86", "80")
