"""From decorator to notification: ranks, an agent, and a webhook receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from support.fork_server import TORCH
from support.forked_ranks import start_ranks
from support.garbage import with_less_collection
from support.rank_processes import has_agent, until
from support.the_only import the_only
from support.webhook_receiver import Receiver

from sentinel.agent.main import POLL_INTERVAL_SECONDS
from sentinel.live.rings import HEARTBEAT_INTERVAL_SECONDS
from sentinel.model.record import Event
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.store.database import connect
from sentinel.store.history import History

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(1200)

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes 5 seconds on an idle machine."""
LONG_STALL_SECONDS = 3600.0
"""A stall threshold that is never reached: on a busy machine a healthy run pauses too."""
SHORT_STALL_SECONDS = 5.0
MAX_DETECTION_SECONDS = 5.0

CAPTURED = {"loss", "learning_rate", "optimizer_steps", "reward"}

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sentinel

marks = sys.argv[3]

def mark(name, text):
    # Atomically: we may be killed at any time.
    with open(f"{marks}/.{name}", "w") as file:
        file.write(text)
    os.replace(f"{marks}/.{name}", f"{marks}/{name}")

def is_last(step):
    try:
        with open(f"{marks}/last") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False

@sentinel.monitor(run="e2e", save_steps=500)
def train(steps, ending):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        x = torch.randn(16, 8)
        time.sleep(0.2 if ending == "slow" and rank == 1 and step > 40 else 0.0)
        # With noise: else the gradient vanishes in the thousands of steps of a busy machine.
        loss = ((model(x) - x.sum(1, keepdim=True) - torch.randn(16, 1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sentinel.log({"reward": rank + step / 100}, step=step)
        mark(rank, f"{os.getpid()} {step} {loss.item()!r}")
        time.sleep(3600.0 if ending == "hang" and rank == 1 and step == 30 else 0.02)
        if is_last(step):
            break
    if ending == "raise" and rank == 1:
        raise ValueError("cannot open s3://user:hunter2@bucket/shard-7\\nand a second line")
    if ending == "exit":
        sys.exit(3)
    dist.destroy_process_group()

train(int(sys.argv[1]), sys.argv[2])
"""

SETTINGS = """
linger_seconds = 1.0
[detectors.run_stalled]
floor = {floor}
[sinks.webhook]
url = "{url}"
"""


class Training:
    """Two ranks with their agent and run directory."""

    def __init__(self, directory, start, steps, ending):
        self.directory = directory
        (directory / "marks").mkdir()
        (directory / "train.py").write_text(with_less_collection(SCRIPT))
        self.processes = start(directory, [str(steps), ending, str(directory / "marks")])

    def wait(self):
        """The exit codes of torchrun, or of the ranks without it."""
        return {process.wait(TIMEOUT_SECONDS) for process in self.processes}

    def mark(self, rank):
        """Process id, last step and last loss of that rank; None before its first step."""
        try:
            pid, step, loss = (self.directory / "marks" / str(rank)).read_text().split()
        except FileNotFoundError:
            return None
        return int(pid), int(step), float(loss)

    def reach(self, step):
        for rank in (0, 1):
            reached = lambda rank=rank: (self.mark(rank) or (0, 0))[1] >= step  # noqa: E731
            until(reached, TIMEOUT_SECONDS, f"step {step}")

    def end_after(self, more):
        """Let both ranks end `more` steps from now; returns the last step."""
        step = max(self.mark(rank)[1] for rank in (0, 1)) + more
        temporary = self.directory / "marks" / ".last"
        temporary.write_text(str(step))
        temporary.replace(temporary.with_name("last"))
        return step

    @property
    def run(self):
        runs = self.directory / "home" / "runs"
        # The first steps may be over before the agent has started.
        (run,) = until(lambda: [*runs.glob("*")], TIMEOUT_SECONDS, "the run has a directory")
        return run

    def outcome(self):
        path = self.run / "outcome.json"
        until(path.exists, TIMEOUT_SECONDS, "the outcome is written")
        return json.loads(path.read_text())

    def agent(self):
        """Process id of the agent, once there is one."""
        path = self.run / "agent.json"
        until(path.exists, TIMEOUT_SECONDS, "an agent is registered")
        return json.loads(path.read_text())["pid"]

    def steps(self):
        """The combined record of every step."""
        with closing(connect(self.run / "sentinel.db")) as database:
            return [r for r in History(database).records(self.run.name) if r.event is Event.STEP]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for rank in (0, 1):
            if mark := self.mark(rank):
                kill_if_running(mark[0])
        until(lambda: not has_agent(self.run), TIMEOUT_SECONDS, "the agent has exited")


def kill_if_running(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


def start_torchrun(directory, arguments):
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", *arguments]
    with (directory / "output").open("w") as output:
        return [
            subprocess.Popen(
                [sys.executable, *command], cwd=directory, stdout=output, stderr=output
            )
        ]


@pytest.fixture
def start_forks(fork_server):
    """Returns a function that starts two ranks without torchrun."""

    def start(directory, arguments):
        with (directory / "output").open("w") as output:
            command = ["train.py", *arguments]
            return start_ranks(fork_server(*TORCH), command, cwd=directory, output=output)

    return start


@pytest.fixture
def train(tmp_path, monkeypatch, receiver, start_forks):
    """Returns a function that starts a training; every one is killed at the end of the test."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_RESOLVE_SECONDS", "0")
    monkeypatch.setenv("SENTINEL_COOLDOWN_SECONDS", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    started = []

    def begin(steps, ending="return", floor=LONG_STALL_SECONDS, start=start_forks):
        settings = SETTINGS.format(url=receiver.url, floor=floor)
        (tmp_path / "sentinel.toml").write_text(settings)
        started.append(Training(tmp_path, start, steps, ending))
        return started[-1]

    yield begin
    for training in started:
        training.end()


def received_alerts(receiver):
    """Detector, status and summary of every received alert."""
    alerts = [request.json["alerts"][0] for request in receiver.accepted]
    return [(a["labels"]["detector"], a["status"], a["annotations"]["summary"]) for a in alerts]


def has_stall_alert(receiver, text):
    """Whether an alert of a stall has `text` in its summary."""
    return any(
        detector == "run_stalled" and status == "firing" and text in summary
        for detector, status, summary in received_alerts(receiver)
    )


@pytest.mark.fault("P5", "T3")
def test_a_healthy_run_is_recorded_completely_without_notifications(train, receiver):
    training = train(40, start=start_torchrun)
    assert training.wait() == {0}

    assert training.outcome()["outcome"] == "finished"
    steps = training.steps()
    assert [record.step for record in steps] == list(range(1, 41))
    for record in steps:
        assert record.values.keys() >= CAPTURED
        assert record.values["reward"] == pytest.approx(0.5 + record.step / 100)
        assert record.spread["reward"].max_rank == 1
    # Two measurements determine the cost; after them a slow machine may skip steps.
    assert all("grad_norm" in record.values for record in steps[:2])
    # Gradients are averaged across ranks, so their norm is the same on both.
    assert {r.spread["grad_norm"].std for r in steps if "grad_norm" in r.values} == {0.0}
    assert all(record.values["step_time"] >= 0.02 for record in steps[1:])
    last = [training.mark(rank)[2] for rank in (0, 1)]
    assert steps[-1].values["loss"] == pytest.approx(sum(last) / 2)
    assert received_alerts(receiver) == []


@pytest.mark.fault("P1")
def test_killed_ranks_are_reported_within_five_seconds(train, receiver):
    training = train(100_000, start=start_torchrun)
    training.reach(20)
    # Else the launcher ends the second rank, and may read the exit statuses before the agent does.
    launcher = psutil.Process(training.processes[0].pid)
    launcher.suspend()
    is_stopped = lambda: launcher.status() == psutil.STATUS_STOPPED  # noqa: E731
    until(is_stopped, TIMEOUT_SECONDS, "the launcher is stopped")
    for rank in (0, 1):
        os.kill(training.mark(rank)[0], signal.SIGKILL)

    alert = the_only(
        until(lambda: received_alerts(receiver), TIMEOUT_SECONDS, "the notification arrives")
    )
    assert alert[:2] == ("run_died", "firing")
    assert "killed by SIGKILL at step" in alert[2]
    outcome = training.outcome()
    assert outcome["outcome"] == "died"
    assert outcome["step"] >= training.mark(0)[1] - 1
    # Seen at one heartbeat, reported at the next, sent when the sink worker wakes up.
    assert (
        2 * (HEARTBEAT_INTERVAL_SECONDS + POLL_INTERVAL_SECONDS)
        + DeliveryTiming().max_sleep_seconds
        < MAX_DETECTION_SECONDS
    )


@pytest.mark.fault("P4")
def test_an_exception_is_reported_with_its_message_and_location(train, receiver):
    training = train(30, "raise", start=start_torchrun)
    assert training.wait() == {1}

    until(lambda: received_alerts(receiver), TIMEOUT_SECONDS, "the notification arrives")
    assert training.outcome()["outcome"] == "exception"
    detector, status, summary = the_only(received_alerts(receiver))
    assert (detector, status) == ("run_failed", "firing")
    line = SCRIPT.splitlines().index(next(x for x in SCRIPT.splitlines() if "shard-7" in x)) + 1
    assert summary.startswith(
        f"Rank 1 raised ValueError at step 30 (train.py:{line} in train): "
        "cannot open s3://***@bucket/shard-7."
    )
    assert all(b"hunter2" not in request.body for request in receiver.requests)


def test_messages_of_exceptions_are_not_stored_without_permission(train, receiver, monkeypatch):
    monkeypatch.setenv("SENTINEL_PRIVACY__MESSAGES", "false")
    training = train(30, "raise")
    assert training.wait() == {0, 1}

    _, _, summary = the_only(
        until(lambda: received_alerts(receiver), TIMEOUT_SECONDS, "a notification")
    )
    assert summary.startswith("Rank 1 raised ValueError at step 30 (train.py:")
    assert all(b"shard-7" not in request.body for request in receiver.requests)
    training.end()
    assert b"shard-7" not in (training.run / "sentinel.db").read_bytes()


@pytest.mark.fault("P5")
def test_an_exit_code_is_stored_and_reported(train, receiver):
    training = train(30, "exit")
    assert training.wait() == {3}

    until(lambda: received_alerts(receiver), TIMEOUT_SECONDS, "the notification arrives")
    outcome = training.outcome()
    assert (outcome["outcome"], outcome["code"]) == ("exit", "3")
    detector, _, summary = the_only(received_alerts(receiver))
    assert detector == "run_failed"
    assert "exited with code 3" in summary


@pytest.mark.full
@pytest.mark.fault("R6")
def test_a_stopped_rank_is_named(train, receiver):
    training = train(100_000, floor=SHORT_STALL_SECONDS)
    training.reach(30)
    pid = training.mark(1)[0]
    os.kill(pid, signal.SIGSTOP)

    text = "rank 1 is suspended by SIGSTOP"
    until(lambda: has_stall_alert(receiver, text), TIMEOUT_SECONDS, "the notification arrives")
    os.kill(pid, signal.SIGCONT)
    until(
        lambda: received_alerts(receiver)[-1][:2] == ("run_stalled", "resolved"),
        TIMEOUT_SECONDS,
        "the incident is resolved",
    )


@pytest.mark.fault("R1")
def test_a_rank_that_hangs_outside_a_collective_is_named(train, receiver):
    """The other rank waits for it in the backward pass of the next step."""
    train(100_000, "hang", floor=SHORT_STALL_SECONDS)

    text = "; rank 0 waits in the backward pass (train.py:"
    until(lambda: has_stall_alert(receiver, text), TIMEOUT_SECONDS, "the notification arrives")


@pytest.mark.fault("R9")
def test_a_rank_that_is_slow_before_its_backward_pass_is_named(train, receiver):
    """The other rank waits for it in the backward pass, so both take equally long for a step."""
    training = train(100_000, "slow")

    def slow_ranks():
        return [
            summary
            for detector, status, summary in received_alerts(receiver)
            if detector == "straggler" and status == "firing"
        ]

    (summary, *_) = until(slow_ranks, TIMEOUT_SECONDS, "the notification arrives")
    assert (
        "Rank 1 is slower in computing, before its backward pass, than the other ranks" in summary
    )
    assert training.mark(1)[1] > 40
    severities = {request.json["commonLabels"]["severity"] for request in receiver.accepted}
    assert "critical" not in severities


@pytest.mark.fault("A1")
def test_a_killed_agent_is_restarted_and_no_step_is_lost(train, receiver):
    training = train(100_000)
    training.reach(50)
    first = training.agent()
    os.kill(first, signal.SIGKILL)

    until(lambda: training.agent() != first, TIMEOUT_SECONDS, "another agent serves the run")
    last = training.end_after(more=100)
    assert training.wait() == {0}
    assert training.outcome()["outcome"] == "finished"
    assert [record.step for record in training.steps()] == list(range(1, last + 1))
    assert received_alerts(receiver) == []
