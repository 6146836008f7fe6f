"""Trainers and agents that are killed at random times, and the steps whose `log()` returned."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

from sentinel.store.database import connect
from sentinel.transport.paths import current_run_dir

TRAINER = """
import os, sys, time

import sentinel

@sentinel.monitor(agent=False)
def train(acknowledge, interval):
    step = 0
    while os.getppid() == int(sys.argv[3]):
        step += 1
        sentinel.log({"loss": 2.0, "grad_norm": 1.0}, step=step)
        os.write(acknowledge, step.to_bytes(8, sys.byteorder))
        time.sleep(interval)

train(int(sys.argv[1]), float(sys.argv[2]))
"""
TIMEOUT_SECONDS = 240.0


class Trainer:
    """A process that logs a step every `interval` seconds, and acknowledges it afterwards."""

    def __init__(self, run: str, interval: float) -> None:
        read, write = os.pipe()
        self._last, self._has_step = 0, Event()
        self._reader = Thread(target=self._read, args=(read,))
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(write), str(interval), str(os.getpid())],
            env={**os.environ, "SENTINEL_RUN_ID": run},
            pass_fds=[write],
        )
        os.close(write)
        self._reader.start()

    def wait_for_a_step(self) -> None:
        """Wait until a step is acknowledged."""
        assert self._has_step.wait(TIMEOUT_SECONDS), "the trainer logs nothing"

    def kill(self) -> int:
        """Kill it; returns the last step that it acknowledged."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        return self._last

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as acknowledged:
            while step := acknowledged.read(8):
                self._last = int.from_bytes(step, sys.byteorder)
                self._has_step.set()


def start_agent(run: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """The agent of that run, once it serves."""
    command = [sys.executable, "-m", "sentinel", "agent", "--run", run]
    agent = subprocess.Popen(command, stderr=stderr)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while _registered_pid(run) != agent.pid:
        assert agent.poll() is None, "the agent has ended"
        assert time.monotonic() < deadline, "the agent does not serve"
        time.sleep(0.02)
    return agent


def kill_trainers(run: str, kills: int, random_: random.Random) -> dict[str, int]:
    """Kill that many trainers, one after the other, while one agent runs.

    Returns the numbers of acknowledged steps, and of those that are not in the history.
    """
    agent = start_agent(run)
    acknowledged = []
    try:
        for _ in range(kills):
            trainer = Trainer(run, interval=0.005)
            trainer.wait_for_a_step()
            time.sleep(random_.uniform(0.0, 0.3))
            acknowledged.append(trainer.kill())
        return _result(run, acknowledged)
    finally:
        _end(agent)


def kill_agents(run: str, kills: int, random_: random.Random) -> dict[str, int]:
    """Kill that many agents, one after the other, while one trainer runs; as `kill_trainers`."""
    # Slow enough that the history is not thinned.
    trainer = Trainer(run, interval=0.05)
    try:
        trainer.wait_for_a_step()
        for _ in range(kills):
            agent = start_agent(run)
            time.sleep(random_.uniform(0.0, 0.5))
            agent.kill()
            agent.wait()
    finally:
        acknowledged = trainer.kill()
    agent = start_agent(run)
    try:
        return _result(run, [acknowledged])
    finally:
        _end(agent)


def _result(run: str, acknowledged: list[int]) -> dict[str, int]:
    """Waits until the last step of each attempt is stored, or `TIMEOUT_SECONDS`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (lost := _lost_steps(run, acknowledged)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return {"acknowledged": sum(acknowledged), "lost": lost, "repeated": _repeated(run)}


def _stored_steps(run: str) -> dict[int, list[int]]:
    """Steps of the history by attempt."""
    query = "select attempt, step from step where event = 'step' order by id"
    found: dict[int, list[int]] = {}
    with closing(connect(current_run_dir(run) / "sentinel.db")) as database:
        for attempt, step in database.execute(query):
            found.setdefault(attempt, []).append(step)
    return found


def _lost_steps(run: str, acknowledged: list[int]) -> int:
    stored = _stored_steps(run)
    return sum(
        len(set(range(1, last + 1)) - set(stored.get(attempt, ())))
        for attempt, last in enumerate(acknowledged)
    )


def _repeated(run: str) -> int:
    return sum(len(steps) - len(set(steps)) for steps in _stored_steps(run).values())


def _registered_pid(run: str) -> int:
    try:
        return int(json.loads((current_run_dir(run) / "agent.json").read_text())["pid"])
    except (FileNotFoundError, ValueError):
        return 0


def _end(agent: subprocess.Popen[bytes]) -> None:
    agent.terminate()
    agent.wait(TIMEOUT_SECONDS)


def isolated(folder: Path) -> dict[str, str]:
    """Environment of a run in that folder, without notifications about long pauses."""
    return {
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "SENTINEL_LINGER_SECONDS": "600",
        "SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3600",
    }
