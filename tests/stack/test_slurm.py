"""The shipped jobs on a real Slurm: each end is named as Slurm knows it, or sends nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from programs import wait_for
from slurm_cluster import SlurmCluster, slurm_cluster
from support.rank_processes import has_ended
from support.webhook_receiver import Receiver

from sentinel.agent.dead_run_closer import KILLED_AFTER_SECONDS, DeadRunCloser
from sentinel.config.settings import load_settings
from sentinel.store.database import connect
from sentinel.store.history import History

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"
TRAIN = """
import os, time
import sentinel

@sentinel.monitor
def train():
    for step in range(int(os.environ["STEPS"])):
        sentinel.log({"loss": 1.0 + 0.99 ** step}, step=step)
        time.sleep(0.05)

train()
"""
PROGRAMS = {
    "sentinel": f'exec {sys.executable} -P -m sentinel "$@"',
    # The launcher: one rank for each node, at an address that exists here.
    "torchrun": "export MASTER_ADDR=127.0.0.1 RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS "
    f"LOCAL_RANK=0 LOCAL_WORLD_SIZE=1\nexec {sys.executable} train.py",
}
GPUS = "#SBATCH --gpus-per-node=8\n"
"""Slurm knows no GPUs here."""


@dataclass(frozen=True)
class Jobs:
    """Jobs of a cluster, with the receiver of their notifications."""

    cluster: SlurmCluster
    receiver: Receiver

    def submit(self, script: str, *options: str, steps: int = 100_000) -> str:
        """Submit a shipped script, whose training takes `steps` steps of 0.05 s; its id."""
        return self.cluster.submit(*options, script, environ={"STEPS": str(steps)})

    def wait_for_attempt(self, job: str, attempt: int) -> None:
        """Wait until the agent follows that attempt."""

        def is_followed() -> bool:
            state = self.state(job)
            return bool(state) and (state["attempt"], state["state"]) == (attempt, "running")

        wait_for(f"attempt {attempt} of job {job}", is_followed)

    def state(self, job: str) -> dict:
        """The state of the run as its agent shows it; empty if none answers."""
        for path in self.cluster.folder.glob(f"*/**/{_run(job)}/**/agent.json"):
            with suppress(OSError, ValueError, KeyError, requests.RequestException):
                url = json.loads(path.read_text())["url"]
                return requests.get(f"{url}/api/run", timeout=5).json()
        return {}

    def stored(self, job: str) -> tuple[list[dict], dict]:
        """Incidents and metadata of the run, once its agent has ended."""
        home = self.cluster.folder / "home" / "runs" / _run(job)
        wait_for(f"the history of job {job}", lambda: has_ended(home))
        with closing(connect(home / "sentinel.db")) as connection:
            history = History(connection)
            return history.incidents(), history.run_metadata.as_dict()

    def end(self, job: str) -> tuple[str, str]:
        """Severity and summary of the incident of the end of a run."""
        incidents, _ = self.stored(job)
        (died,) = [each for each in incidents if each["detector"] == "run_died"]
        return died["severity"], died["summary"]

    def alerts(self, job: str) -> list[dict]:
        """The alerts of the job's run that the receiver got, in order."""
        return [
            alert
            for request in self.receiver.accepted
            for alert in request.json["alerts"]
            if alert["labels"]["run"] == _run(job)
        ]


def _run(job: str) -> str:
    return f"grpo-7b-{job}"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("home", "bin"):
        (folder / name).mkdir(mode=0o700)
    for name, text in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o700)
    (folder / "train.py").write_text(TRAIN)
    for path in DEPLOY.glob("*.sh"):
        assert GPUS in path.read_text()
        (folder / path.name).write_text(path.read_text().replace(GPUS, ""))
    with Receiver() as receiver:
        environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SENTINEL_")},
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "shm"),
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
            "SENTINEL_HOLD_SECONDS": "0",
        }
        with slurm_cluster(folder, environ) as cluster:
            yield Jobs(cluster, receiver)


@pytest.fixture(scope="module")
def job(jobs) -> dict[str, str]:
    """Jobs that train, by what becomes of them: they start together, which takes less time."""
    job = {
        "time limit": jobs.submit("one-node.sh"),
        "ended": jobs.submit("one-node.sh", steps=100),
        "cancelled": jobs.submit("one-node.sh"),
        "requeued": jobs.submit("one-node.sh"),
        "requeues itself": jobs.submit("requeue.sh", "--nodes=1"),
        "preempted": jobs.submit("one-node.sh", "--nodelist=nodeb", "--exclusive", "--no-requeue"),
    }
    jobs.wait_for_attempt(job["time limit"], 0)
    # The controller checks the limits every 30 seconds, and accepts no time in the past.
    over = "EndTime=now+5seconds"
    jobs.cluster.command("scontrol", "update", f"JobId={job['time limit']}", over)
    return job


@pytest.mark.fault("P31")
def test_a_job_that_ends_by_itself_sends_nothing(jobs, job):
    ended = job["ended"]
    jobs.cluster.wait_for_state(ended, "COMPLETED")
    incidents, metadata = jobs.stored(ended)

    assert (incidents, jobs.alerts(ended)) == ([], [])
    assert {name: text for name, text in metadata.items() if name.startswith("slurm/")} == {
        "slurm/job_id": ended,
        "slurm/job_name": "grpo-7b",
        "slurm/cluster": "test",
        "slurm/partition": "gpu",
        "slurm/node_list": "nodea",
        "slurm/restart_count": "0",
    }


@pytest.mark.fault("P31")
def test_a_job_that_is_cancelled_is_recorded_and_sends_nothing(jobs, job):
    cancelled = job["cancelled"]
    jobs.wait_for_attempt(cancelled, 0)
    jobs.cluster.command("scancel", cancelled)
    severity, summary = jobs.end(cancelled)

    # Slurm hides the state while the script of the job still ends.
    texts = (
        "was cancelled (CANCELLED).",
        "is being ended: it was cancelled, or its script has ended",
    )
    assert severity == "info"
    assert any(f"Slurm job {cancelled} {text}" in summary for text in texts)
    assert jobs.alerts(cancelled) == []


@pytest.mark.fault("P31")
def test_a_preemption_is_named(jobs, job):
    preempted = job["preempted"]
    jobs.wait_for_attempt(preempted, 0)
    options = ("--partition=urgent", "--nodelist=nodeb", "--exclusive", "--wrap=true")
    urgent = jobs.cluster.submit(*options, environ={})
    jobs.cluster.wait_for_state(preempted, "PREEMPTED")
    jobs.cluster.wait_for_state(urgent, "COMPLETED")

    (alert,) = jobs.alerts(preempted)
    assert alert["labels"]["severity"] == "warning"
    assert alert["annotations"]["summary"].endswith(
        f"Slurm job {preempted} was preempted (PREEMPTED)."
    )


@pytest.mark.fault("P31")
def test_a_job_that_is_requeued_continues_as_the_next_attempt(jobs, job):
    requeued = job["requeued"]
    jobs.wait_for_attempt(requeued, 0)
    jobs.cluster.command("scontrol", "requeue", requeued)
    jobs.cluster.wait_for_state(requeued, "PENDING")
    severity, summary = jobs.end(requeued)
    # Slurm would start it after two minutes.
    jobs.cluster.command("scontrol", "update", f"JobId={requeued}", "StartTime=now")
    jobs.wait_for_attempt(requeued, 1)

    assert severity == "info"
    assert summary.endswith(f"Slurm job {requeued} was put back into the queue (REQUEUED).")
    assert jobs.state(requeued)["metadata"]["slurm/restart_count"] == "1"
    assert jobs.alerts(requeued) == []
    jobs.cluster.command("scancel", requeued)


@pytest.mark.fault("P31")
def test_a_job_requeues_itself_before_its_time_is_over(jobs, job):
    requeued = job["requeues itself"]
    jobs.wait_for_attempt(requeued, 0)
    jobs.cluster.command("scancel", "--batch", "--signal=USR1", requeued)
    jobs.cluster.wait_for_state(requeued, "PENDING")

    assert jobs.cluster.fields(requeued)["Restarts"] == "1"
    assert jobs.end(requeued)[0] == "info"
    assert jobs.alerts(requeued) == []
    jobs.cluster.command("scancel", requeued)


@pytest.mark.fault("P31")
def test_a_time_limit_is_named_with_the_remedy(jobs, job):
    over = job["time limit"]
    jobs.cluster.wait_for_state(over, "TIMEOUT")

    (alert,) = jobs.alerts(over)
    assert alert["labels"]["severity"] == "warning"
    assert alert["annotations"]["summary"].endswith(
        f"Slurm job {over} reached its time limit (TIMEOUT)."
    )
    assert "`--time`" in alert["annotations"]["description"]


@pytest.mark.fault("P31")
def test_a_node_that_fails_is_named_by_the_other_node_or_the_next_process(jobs, job, monkeypatch):
    """Of a job of two nodes by the head; of one on the lost node by any later process."""
    two_nodes = jobs.submit("several-nodes.sh", "--nodes=2", "--no-requeue")
    one_node = jobs.submit("one-node.sh", "--nodelist=nodeb", "--no-requeue")
    jobs.wait_for_attempt(one_node, 0)
    wait_for(
        "both nodes report to the head",
        lambda: len(jobs.state(two_nodes).get("cluster", {}).get("nodes", [])) == 2,
    )
    jobs.cluster.lose_node("nodeb", [two_nodes, one_node])
    jobs.cluster.wait_for_state(two_nodes, "NODE_FAIL")
    jobs.cluster.wait_for_state(one_node, "NODE_FAIL")

    last = jobs.alerts(two_nodes)[-1]
    assert last["labels"]["severity"] == "critical"
    assert last["annotations"]["summary"].endswith(f"job {two_nodes} lost a node (NODE_FAIL).")
    assert jobs.alerts(one_node) == []
    _close_dead_runs(jobs, monkeypatch)
    (alert,) = jobs.alerts(one_node)
    assert alert["labels"]["severity"] == "critical"
    assert "together with the agent" in alert["annotations"]["summary"]
    assert alert["annotations"]["summary"].endswith(f"job {one_node} lost a node (NODE_FAIL).")


def _close_dead_runs(jobs, monkeypatch):
    """What `sentinel serve` does minutes later."""
    for name, text in jobs.cluster.environ.items():
        monkeypatch.setenv(name, text)
    settings = load_settings({}, environ=jobs.cluster.environ)
    DeadRunCloser(settings, lambda: time.time() + 2 * KILLED_AFTER_SECONDS).close_cases()
