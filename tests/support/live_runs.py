"""A real run of small ranks with a real agent, with a fault that a test turns on and off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from programs import free_port
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.transport.paths import DATABASE_NAME

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes seconds on an idle machine."""
STEP_SECONDS = 0.05

RANK = """
import math, os, random, sys, time
import sentinel

folder, rank, run = sys.argv[1], int(os.environ["RANK"]), os.environ["SENTINEL_RUN_ID"]
is_on = lambda name: os.path.exists(f"{folder}/{name}")
rng = random.Random(rank)
step = since = 0
begin, seconds = float(sys.argv[2]), float(sys.argv[3])
with sentinel.monitor(run=run, agent=False, save_steps=100):
    while not is_on("stop"):
        step += 1
        since = since + 1 if is_on("fault") else 0
        values = {
            "loss": math.nan if is_on("nan") else 0.5 + math.exp(-step / 200) + rng.gauss(0, 0.02),
            "reward": (0.4 + rng.gauss(0, 0.02)) * max(0.0, 1 - since / 20),
            "kl": 0.03 * math.exp(min(since / 4, 8)) * (1 + 0.1 * rng.random()),
            "entropy": 1.1 + rng.gauss(0, 0.01) - 0.6 * min(1.0, since / 20),
            "grad_norm": 0.9,
            "learning_rate": 1e-6,
            "my/metric": 40 + rng.random(),
        }
        sentinel.log(values, step=step)
        if step % 20 == 0:
            story = "the fox " * 12 if since else f"A story of step {step} by rank {rank}."
            sentinel.log_samples(["Write a story."], [story], [values["reward"]], step=step)
        if step % 50 == 0 and rank == 0:
            sentinel.mark("save", step=step)
        # Both ranks are at the same step, so that neither is late.
        time.sleep(max(0.0, begin + step * seconds - time.time()))
"""


@dataclass
class LiveRun:
    """A run under way; `url` is the page of its agent, which a restarted agent keeps."""

    run: str
    folder: Path
    environ: dict[str, str]
    receiver: Receiver
    port: int
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    agent: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """Its home directory."""
        return self.folder / "home"

    @property
    def url(self) -> str:
        """The address of its agent."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """Its database."""
        return self.home / "runs" / self.run / DATABASE_NAME

    def state(self) -> dict[str, Any]:
        """The state of the run by its agent."""
        return requests.get(f"{self.url}/api/run", timeout=TIMEOUT_SECONDS).json()

    def step(self) -> int:
        """The newest step that the agent knows; 0 before the first."""
        try:
            return self.state().get("step") or 0
        except requests.RequestException:
            return 0

    def until_step(self, step: int) -> None:
        """Wait until the agent knows that step."""
        until(lambda: self.step() >= step, TIMEOUT_SECONDS, f"step {step}")

    def turn_on(self, fault: str = "fault") -> None:
        """Begin a fault in every rank: "fault" (the policy collapses) or "nan" (the loss is)."""
        (self.folder / fault).touch()

    def turn_off(self, fault: str = "fault") -> None:
        """End a fault."""
        (self.folder / fault).unlink()

    def start_agent(self) -> None:
        """Start the agent, and wait until it answers."""
        command = [sys.executable, "-m", "sentinel", "agent", "--run", self.run]
        with (self.folder / "agent.out").open("ab") as output:
            self.agent = subprocess.Popen(command, env=self.environ, stdout=output, stderr=output)
        until(self._answers, TIMEOUT_SECONDS, "the agent answers")

    def kill_agent(self) -> None:
        """Kill the agent, as the system does when memory runs out."""
        assert self.agent is not None
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait(TIMEOUT_SECONDS)

    def end(self) -> None:
        """End the training, and wait until the agent knows."""
        (self.folder / "stop").touch()
        for rank in self.ranks:
            assert rank.wait(TIMEOUT_SECONDS) == 0
        until(lambda: self.state()["state"] == "finished", TIMEOUT_SECONDS, "the run is finished")

    def _answers(self) -> bool:
        assert self.agent is not None
        assert self.agent.poll() is None, (self.folder / "agent.out").read_text()
        try:
            return requests.get(f"{self.url}/-/healthy", timeout=TIMEOUT_SECONDS).ok
        except requests.ConnectionError:
            return False


@contextmanager
def live_run(
    folder: Path, *, run: str = "grpo-7b", world: int = 2, **environ: str
) -> Iterator[LiveRun]:
    """A run of `world` ranks that take 20 steps a second, and its agent; all end with the block."""
    port = free_port()
    with Receiver() as receiver:
        own = {
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "shm"),
            "SENTINEL_RUN_ID": run,
            "SENTINEL_PORT": str(port),
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
            "SENTINEL_DASHBOARD_URL": "https://grafana.example/d/health?var-run={run}",
            "SENTINEL_HOLD_SECONDS": "0",
            "SENTINEL_NODE_POLL_SECONDS": "1",
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
        }
        live = LiveRun(run, folder, os.environ | own | environ, receiver, port)
        try:
            times = [str(time.time() + 1.0), str(STEP_SECONDS)]
            for rank in range(world):
                ranked = live.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [sys.executable, "-c", RANK, str(folder), *times]
                live.ranks.append(subprocess.Popen(command, env=ranked))
            live.start_agent()
            yield live
        finally:
            for process in [*live.ranks, live.agent]:
                if process is not None:
                    process.kill()
                    process.wait()
