"""From decorator to page: real ranks under a real launcher, a real agent, a real receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.agent.main import POLL_INTERVAL_SECONDS
from sentinel.live.rings import HEARTBEAT_INTERVAL_SECONDS
from sentinel.model.record import Event
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.store.database import connect
from sentinel.store.history import History

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(1200)

PATIENCE = 240.0
"""Seconds: what a busy machine may take for what an idle one does in five."""
NEVER = 3600.0
"""Seconds of standing still that are told: on a busy machine a healthy run pauses too."""
SOON = 5.0

CAPTURED = {"loss", "learning_rate", "optimizer_steps", "reward"}

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sentinel

marks = sys.argv[3]

def mark(name, text):
    # In one piece, whenever we are killed.
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
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sentinel.log({"reward": rank + step / 100}, step=step)
        mark(rank, f"{os.getpid()} {step} {loss.item()!r}")
        time.sleep(3600.0 if ending == "hang" and rank == 1 and step == 30 else 0.02)
        if is_last(step):
            break
    if ending == "raise" and rank == 1:
        raise ValueError("a secret in the message")
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
    """Two ranks under torchrun, and what becomes of them."""

    def __init__(self, place, steps, ending):
        self.place = place
        (place / "marks").mkdir()
        (place / "train.py").write_text(SCRIPT)
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
        self.launcher = subprocess.Popen(
            [sys.executable, *words, str(steps), ending, str(place / "marks")],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def mark(self, rank):
        """Process, last step and last loss of that rank, once it has made a step."""
        try:
            pid, step, loss = (self.place / "marks" / str(rank)).read_text().split()
        except FileNotFoundError:
            return None
        return int(pid), int(step), float(loss)

    def reach(self, step):
        for rank in (0, 1):
            reached = lambda rank=rank: (self.mark(rank) or (0, 0))[1] >= step  # noqa: E731
            until(reached, PATIENCE, f"step {step}")

    def last(self, more):
        """Let both ranks end so many steps from now, far enough ahead of both; which step."""
        step = max(self.mark(rank)[1] for rank in (0, 1)) + more
        beside = self.place / "marks" / ".last"
        beside.write_text(str(step))
        beside.replace(beside.with_name("last"))
        return step

    @property
    def run(self):
        (found,) = (self.place / "home" / "runs").iterdir()
        return found

    def outcome(self):
        told = self.run / "outcome.json"
        until(told.exists, PATIENCE, "the outcome is written")
        return json.loads(told.read_text())

    def agent(self):
        """Process that serves the run, once there is one."""
        told = self.run / "agent.json"
        until(told.exists, PATIENCE, "an agent is up")
        return json.loads(told.read_text())["pid"]

    def steps(self):
        """The combined record of every step."""
        with closing(connect(self.run / "sentinel.db")) as database:
            return [r for r in History(database).records(self.run.name) if r.event is Event.STEP]

    def end(self):
        self.launcher.kill()
        self.launcher.wait()
        for rank in (0, 1):
            if mark := self.mark(rank):
                quietly_kill(mark[0])
        gone = until(lambda: not (self.run / "agent.json").exists(), PATIENCE, "the agent has left")
        assert gone


def quietly_kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def train(tmp_path, monkeypatch, receiver):
    """Starts a training of so many steps that ends as told; ends it whatever the test does."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    started = []

    def begin(steps, ending="return", floor=NEVER):
        settings = SETTINGS.format(url=receiver.url, floor=floor)
        (tmp_path / "sentinel.toml").write_text(settings)
        started.append(Training(tmp_path, steps, ending))
        return started[-1]

    yield begin
    for training in started:
        training.end()


def told(receiver):
    """Detector and state of every page that arrived, with its summary."""
    alerts = [request.json["alerts"][0] for request in receiver.accepted]
    return [(a["labels"]["detector"], a["status"], a["annotations"]["summary"]) for a in alerts]


def stalled(receiver, words):
    """Whether a page told of a standstill in these words, whatever a pause before was told as."""
    return any(d == "run_stalled" and s == "firing" and words in w for d, s, w in told(receiver))


def test_a_healthy_run_is_recorded_whole_and_wakes_nobody(train, receiver):
    training = train(40)
    assert training.launcher.wait(PATIENCE) == 0

    assert training.outcome()["outcome"] == "finished"
    steps = training.steps()
    assert [record.step for record in steps] == list(range(1, 41))
    for record in steps:
        assert record.values.keys() >= CAPTURED
        assert record.values["reward"] == pytest.approx(0.5 + record.step / 100)
        assert record.spread["reward"].max_rank == 1
    # Two measurements tell what one costs; after them a slow machine may leave steps out.
    assert all("grad_norm" in record.values for record in steps[:2])
    # Gradients are averaged across ranks, so their norm is the same on both.
    assert {r.spread["grad_norm"].std for r in steps if "grad_norm" in r.values} == {0.0}
    assert all(record.values["step_time"] >= 0.02 for record in steps[1:])
    last = [training.mark(rank)[2] for rank in (0, 1)]
    assert steps[-1].values["loss"] == pytest.approx(sum(last) / 2)
    assert told(receiver) == []


def test_all_ranks_killed_is_a_page_within_five_seconds(train, receiver):
    training = train(100_000)
    training.reach(20)
    # Without the launcher nobody else ends the ranks, so every death is ours.
    training.launcher.kill()
    # Stopped first: a rank that outlives its peer for a moment could still raise over its loss.
    for deed in (signal.SIGSTOP, signal.SIGKILL):
        for rank in (0, 1):
            os.kill(training.mark(rank)[0], deed)

    (page,) = until(lambda: told(receiver), PATIENCE, "the page arrives")
    assert page[:2] == ("run_died", "firing")
    assert "killed at step" in page[2]
    outcome = training.outcome()
    assert outcome["outcome"] == "died"
    assert outcome["step"] >= training.mark(0)[1] - 1
    # Seen by a tick, said by the next, sent when the lane looks: all else is the machine's speed.
    assert (
        2 * (HEARTBEAT_INTERVAL_SECONDS + POLL_INTERVAL_SECONDS)
        + DeliveryTiming().max_sleep_seconds
        < SOON
    )


def test_an_exception_is_told_by_its_type_and_never_its_message(train, receiver):
    training = train(30, "raise")
    assert training.launcher.wait(PATIENCE) == 1

    until(lambda: told(receiver), PATIENCE, "the page arrives")
    assert training.outcome()["outcome"] == "exception"
    assert told(receiver) == [("run_failed", "firing", "Rank 1 raised ValueError at step 30.")]
    assert all(b"secret" not in request.body for request in receiver.requests)


def test_an_exit_code_is_kept_and_told(train, receiver):
    training = train(30, "exit")
    training.launcher.wait(PATIENCE)

    until(lambda: told(receiver), PATIENCE, "the page arrives")
    outcome = training.outcome()
    assert (outcome["outcome"], outcome["code"]) == ("exit", "3")
    ((detector, _, summary),) = told(receiver)
    assert detector == "run_failed"
    assert "exit code 3" in summary


def test_a_rank_that_stands_still_is_named(train, receiver):
    training = train(100_000, floor=SOON)
    training.reach(30)
    pid = training.mark(1)[0]
    os.kill(pid, signal.SIGSTOP)

    words = "Rank 1 is stopped by a signal; none has moved past step"
    until(lambda: stalled(receiver, words), PATIENCE, "the page arrives")
    os.kill(pid, signal.SIGCONT)
    until(lambda: told(receiver)[-1][:2] == ("run_stalled", "resolved"), PATIENCE, "it ends")


def test_a_rank_that_hangs_in_its_own_code_is_named_though_all_stand_at_one_step(train, receiver):
    """The others are inside the backward pass of the next step already, waiting for it."""
    train(100_000, "hang", floor=SOON)

    words = "Rank 1 is behind; none has moved past step 30"
    until(lambda: stalled(receiver, words), PATIENCE, "the page arrives")


def test_the_hook_brings_a_killed_agent_back_and_no_step_is_lost(train, receiver):
    training = train(100_000)
    training.reach(50)
    first = training.agent()
    os.kill(first, signal.SIGKILL)

    until(lambda: training.agent() != first, PATIENCE, "another agent serves the run")
    last = training.latest_records(more=100)
    assert training.launcher.wait(PATIENCE) == 0
    assert training.outcome()["outcome"] == "finished"
    assert [record.step for record in training.steps()] == list(range(1, last + 1))
    assert told(receiver) == []
