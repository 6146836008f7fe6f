"""Nodes on one machine, each with an agent and folders of its own, and their ranks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agent import stored_steps, wait_for_agent_url
from aggregation_ranks import RankLocation

PORT = 14778
SETTLED_SECONDS = 5.0


@dataclass
class Nodes:
    """The agents of `world` ranks, `local` of them per node, each in its own folder."""

    folder: Path
    world: int
    local: int
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    head: str = ""

    def __enter__(self) -> Self:
        # The head first: if all start at once, each takes long.
        self.agents.append(self._agent(0))
        try:
            self.head = wait_for_agent_url(self._run(0) / "agent.json")
            self.agents += [self._agent(node) for node in range(1, self.world // self.local)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.wait(30.0)
            except subprocess.TimeoutExpired:
                agent.kill()

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of the agents, the head first."""
        return tuple(agent.pid for agent in self.agents)

    def locations(self) -> Iterator[RankLocation]:
        """The location of each rank."""
        for rank in range(self.world):
            node = rank // self.local
            rings = self.folder / str(node) / "rings" / f"bench{node}"
            rings.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield RankLocation(rank, self.world, self.local, node, rings, f"bench{node}")

    def ranks_per_step(self) -> list[int]:
        """Number of ranks per step at the head, once it receives no more."""
        previous_total, counts = -1, self._read_ranks_per_step()
        while sum(counts) != previous_total:
            time.sleep(SETTLED_SECONDS)
            previous_total, counts = sum(counts), self._read_ranks_per_step()
        return counts

    def _read_ranks_per_step(self) -> list[int]:
        path = self._run(0) / "sentinel.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with closing(connection):
            return [count for _, count in stored_steps(connection, "bench0")]

    def _agent(self, node: int) -> subprocess.Popen[bytes]:
        folder = self.folder / str(node)
        folder.mkdir()
        own = {
            "SENTINEL_HOME": str(folder / "home"), "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
            "SENTINEL_CLUSTER__HEAD": f"127.0.0.1:{PORT}", "SENTINEL_CLUSTER__TOKEN": "bench",
            "SENTINEL_LINGER_SECONDS": "0", "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3600", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        command = [sys.executable, "-m", "sentinel", "agent", "--run", f"bench{node}"]
        with (folder / "agent.log").open("wb") as log_file:
            return subprocess.Popen(command, env={**os.environ, **own}, stderr=log_file)

    def _run(self, node: int) -> Path:
        return self.folder / str(node) / "home" / "runs" / f"bench{node}"
