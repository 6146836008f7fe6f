"""From a training to the notification, through Prometheus and Alertmanager; and killed.

The tests share one run and depend on their order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
from dashboards import queries, with_variables
from programs import free_port, run_program, running, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("kl_runaway.py")
RUN = "runaway-test"
SCRAPES = 8
"""Number of further scrapes after which an alert counts as not sent."""

LIVE = {"$run": RUN, "$__rate_interval": "20s", "$__range": "5m", "$__interval": "1s"}
EXPECTED_EMPTY = {
    "run-health: Detector errors A": "no detector fails",
    "run-health: Diagnosis A": "KL alone need not have a diagnosis",
    "run-health: Nodes A": "this run is on one node",
    "run-health: Sink deliveries A": "this agent has no sink: Alertmanager sends notifications",
} | {
    name: "there may be no GPU here" for name, _ in queries() if name.startswith("run-health: GPU ")
}


@dataclass(frozen=True)
class Training:
    """A running torchrun with its two ranks, and the agent that they started."""

    launcher: psutil.Process
    ranks: list[psutil.Process]
    agent: psutil.Process
    url: str

    def kill(self) -> None:
        """Kill launcher and ranks, the launcher first, so that it cleans nothing up."""
        for process in (self.launcher, *self.ranks):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def training(stack, tmp_path_factory):
    """The training and its agent, after the first scrape of the agent."""
    pytest.importorskip("torch")
    shared = tmp_path_factory.mktemp("rings")
    port = str(free_port())
    environ = {
        **os.environ,
        "SENTINEL_HOME": str(stack.home),
        "SENTINEL_RUNTIME_DIR": str(shared),
        "SENTINEL_RUN_ID": RUN,
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    log = shared / "training.log"
    with running(log, sys.executable, *launch, str(SCRIPT), env=environ) as torchrun:
        launcher = psutil.Process(torchrun.pid)
        wait_for("the agent's first scrape", lambda: stack.prometheus.instant_query(_series("up")))
        registration = json.loads((stack.home / "runs" / RUN / "agent.json").read_text())
        agent = psutil.Process(registration["pid"])
        started = Training(launcher, _ranks(launcher), agent, registration["url"])
        yield started
        started.kill()
        with suppress(psutil.NoSuchProcess):
            agent.kill()


def _ranks(launcher: psutil.Process) -> list[psutil.Process]:
    return [child for child in launcher.children() if str(SCRIPT) in child.cmdline()]


def _series(metric: str) -> str:
    return f'{metric}{{run="{RUN}"}}' if metric != "up" else 'up{job="sentinel"} == 1'


def _further_scrapes(stack, metric: str) -> None:
    """Wait until Prometheus has stored that many more samples of a series of the run."""
    count = f"count_over_time({metric}[1h])"

    def stored() -> float:
        return sum(float(series["value"][1]) for series in stack.prometheus.instant_query(count))

    before = stored()
    wait_for(f"{SCRAPES} more samples of {metric}", lambda: stored() >= before + SCRAPES)


def test_the_kl_alert_reaches_its_receiver(stack, training):
    assert len(training.ranks) == 2
    wait_for("the KL alert", lambda: stack.received("SentinelKlBlowup", "firing", RUN))

    (alert,) = stack.received("SentinelKlBlowup", "firing", RUN)[:1]
    assert alert["labels"]["detector"] == "kl_blowup"
    assert alert["annotations"]["runbook_url"].endswith("/kl_blowup.md")
    assert RUN in alert["annotations"]["summary"]


def test_a_live_agents_metrics_pass_the_linter(training, promtool):
    page = requests.get(f"{training.url}/metrics", timeout=60).text
    checked = run_program(promtool, "check", "metrics", text=page)

    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_dashboard_query_returns_data_of_the_live_run(stack, training):
    """Only the expected panels are empty."""
    empty = {name: with_variables(target["expr"], LIVE) for name, target in queries()}

    def always_empty() -> set[str]:
        """Queries that never returned data; later misses do not count."""
        for name, query in list(empty.items()):
            if stack.prometheus.instant_query(query):
                del empty[name]
        return set(empty)

    # Rates need a few scrapes, and a checkpoint needs its step.
    try:
        wait_for("data of each query", lambda: always_empty() <= EXPECTED_EMPTY.keys())
    finally:
        print(f"Empty: {sorted(empty)}")


def test_a_killed_training_is_notified_and_does_not_look_recovered(stack, training):
    """After SIGKILL of every rank the death is notified, and the KL alert keeps firing."""
    training.kill()
    wait_for("the alert of the death", lambda: stack.received("SentinelRunDied", "firing", RUN))
    firing = f'sentinel_alert_firing{{run="{RUN}", detector="kl_blowup", severity="critical"}}'
    _further_scrapes(stack, firing)

    assert stack.received("SentinelKlBlowup", "resolved", RUN) == []
    # Polled: a busy machine may miss a scrape.
    died = f'sentinel_run_state{{run="{RUN}", state="died"}} == 1'
    wait_for("the alert still firing", lambda: stack.prometheus.instant_query(f"{firing} == 1"))
    wait_for("the state", lambda: stack.prometheus.instant_query(died))


def test_a_killed_agent_does_not_look_recovered(stack, training):
    """Without a target, the alerts keep firing."""
    training.agent.kill()
    wait_for(
        "the agent's absence", lambda: stack.prometheus.instant_query('up{job="sentinel"} == 0')
    )
    firing = f'ALERTS{{alertname="SentinelKlBlowup", run="{RUN}", alertstate="firing"}}'
    _further_scrapes(stack, firing)

    assert stack.prometheus.instant_query(_series("sentinel_alert_firing")) == []
    for alert in ("SentinelKlBlowup", "SentinelRunDied"):
        assert stack.received(alert, "resolved", RUN) == []
