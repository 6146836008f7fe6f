"""From a real training to the page: scraped, judged, alerted, delivered; and killed.

One run is shared by the tests of this file, which are in the order of its life.
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
from dashboards import filled_in, queries
from programs import free_port, running, told, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("kl_runaway.py")
RUN = "runaway-test"
SCRAPES = 8
"""How many more scrapes are waited for before silence counts as an answer."""

LIVE = {"$run": RUN, "$__rate_interval": "20s", "$__range": "5m", "$__interval": "1s"}
SILENT = {
    "run-health: Detector errors A": "no detector fails",
    "run-health: Diagnosis A": "a KL alone need not tell its cause",
    "run-health: Nodes A": "this run is on one node",
    "run-health: Sink deliveries A": "this agent has no sink: Alertmanager tells people",
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
        """End launcher and ranks without a word, the launcher first so that it tidies nothing."""
        for process in (self.launcher, *self.ranks):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def training(stack, tmp_path_factory):
    """The training and its agent, once the agent is asked by Prometheus."""
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
        wait_for("the agent's first scrape", lambda: stack.prometheus.now(_series("up")))
        told_of = json.loads((stack.home / "runs" / RUN / "agent.json").read_text())
        agent = psutil.Process(told_of["pid"])
        begun = Training(launcher, _ranks(launcher), agent, told_of["url"])
        yield begun
        begun.kill()
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
        return sum(float(one["value"][1]) for one in stack.prometheus.now(count))

    before = stored()
    wait_for(f"{SCRAPES} more samples of {metric}", lambda: stored() >= before + SCRAPES)


def test_the_kl_alert_reaches_its_receiver(stack, training):
    """A blow-up of the training's KL is told through Prometheus and Alertmanager."""
    assert len(training.ranks) == 2
    wait_for("the KL alert", lambda: stack.told("SentinelKlBlowup", "firing", RUN))

    (alert,) = stack.told("SentinelKlBlowup", "firing", RUN)[:1]
    assert alert["labels"]["detector"] == "kl_blowup"
    assert alert["annotations"]["runbook_url"].endswith("/kl_blowup.md")
    assert RUN in alert["annotations"]["summary"]


def test_a_live_agents_metrics_pass_the_linter(training, promtool):
    """What Prometheus scrapes is what the linter likes."""
    page = requests.get(f"{training.url}/metrics", timeout=60).text
    checked = told(promtool, "check", "metrics", text=page)

    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_query_of_the_dashboards_has_an_answer_of_the_live_run(stack, training):
    """No panel is empty for a real run, but those that should be."""
    unanswered = {name: filled_in(target["expr"], LIVE) for name, target in queries()}

    def silent() -> set[str]:
        """Those that never had an answer: a missed scrape is no reason to ask one again."""
        for name, query in list(unanswered.items()):
            if stack.prometheus.now(query):
                del unanswered[name]
        return set(unanswered)

    # Rates need a few scrapes, and a checkpoint needs its step.
    try:
        wait_for("an answer to each query", lambda: silent() <= SILENT.keys())
    finally:
        print(f"Without an answer: {sorted(unanswered)}")


def test_killing_the_training_is_told_and_does_not_read_as_recovery(stack, training):
    """After SIGKILL of every rank the death is told, and the KL alert goes on firing."""
    training.kill()
    wait_for("the alert of the death", lambda: stack.told("SentinelRunDied", "firing", RUN))
    firing = f'sentinel_alert_firing{{run="{RUN}", detector="kl_blowup", severity="critical"}}'
    _further_scrapes(stack, firing)

    assert stack.told("SentinelKlBlowup", "resolved", RUN) == []
    # Waited for: a scrape that this machine was too busy for leaves nothing to ask.
    died = f'sentinel_run_state{{run="{RUN}", state="died"}} == 1'
    wait_for("the alert still firing", lambda: stack.prometheus.now(f"{firing} == 1"))
    wait_for("the state", lambda: stack.prometheus.now(died))


def test_killing_the_agent_too_does_not_read_as_recovery(stack, training):
    """With nobody left to ask, the alerts are kept firing."""
    training.agent.kill()
    wait_for("the agent's absence", lambda: stack.prometheus.now('up{job="sentinel"} == 0'))
    kept = f'ALERTS{{alertname="SentinelKlBlowup", run="{RUN}", alertstate="firing"}}'
    _further_scrapes(stack, kept)

    assert stack.prometheus.now(_series("sentinel_alert_firing")) == []
    for alert in ("SentinelKlBlowup", "SentinelRunDied"):
        assert stack.told(alert, "resolved", RUN) == []
