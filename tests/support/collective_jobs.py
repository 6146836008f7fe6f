"""Jobs of several nodes on one machine: a process per rank, a folder per node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import free_port
from support.fork_server import ForkedProcess, ForkServer

from sentinel.model.record import Event, Record
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingHeader, RingReader

SCRIPT = Path(__file__).with_name("collective_ranks.py")


@dataclass
class Job:
    """`nodes` maps each rank to its node; `plan` is passed to every rank."""

    folder: Path
    nodes: tuple[int, ...]
    plan: dict[str, Any]
    server: ForkServer
    ranks: list[ForkedProcess] = field(default_factory=list)

    def start(self) -> None:
        port = free_port()
        for rank in range(len(self.nodes)):
            command, env = [str(SCRIPT), json.dumps(self.plan)], self._environ(rank, port)
            with (self.folder / f"{rank}.log").open("w") as log:
                self.ranks.append(self.server.start(command, env=env, cwd=self.folder, output=log))

    def wait(self, seconds: float = 240.0) -> list[int]:
        """The exit codes of all ranks, once they have ended."""
        return [rank.wait(seconds) for rank in self.ranks]

    def output(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text()

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    def rings(self, node: int) -> dict[int, tuple[RingHeader, list[Record]]]:
        """Every ring of a node by rank: its header, and its records."""
        found = {}
        for path in sorted(self.runtime(node).glob("*/*.ring")):
            reader = RingReader(path)
            header = reader.read_header()
            identity = header.identity
            decoder = RecordDecoder(identity.run, identity.attempt, identity.rank)
            records = map(decoder.decode, reader.read(RingCursor()).payloads)
            found[identity.rank] = header, [record for record in records if record is not None]
            reader.close()
        return found

    def collective(self, node: int, rank: int) -> list[str]:
        """The states of the collective that a rank reported."""
        _, records = self.rings(node)[rank]
        metadata = [r.attributes for r in records if r.event is Event.METADATA]
        return [each["collective"] for each in metadata if "collective" in each]

    def runtime(self, node: int) -> Path:
        return self.folder / f"node{node}" / "shm"

    def _environ(self, rank: int, port: int) -> dict[str, str]:
        node = self.nodes[rank]
        local_ranks = [other for other, other_node in enumerate(self.nodes) if other_node == node]
        return {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.nodes)),
            "LOCAL_RANK": str(local_ranks.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(local_ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "SENTINEL_RUN_ID": "gathered",
            "SENTINEL_HOME": str(self.folder / f"node{node}" / "home"),
            "SENTINEL_RUNTIME_DIR": str(self.runtime(node)),
        }


@contextmanager
def job(server: ForkServer, folder: Path, nodes: tuple[int, ...], **plan: Any) -> Iterator[Job]:
    """A running job, whose ranks `server` starts; those that are left at the end are killed."""
    running = Job(folder, nodes, {"steps": 300, "step_seconds": 0.01, **plan}, server)
    try:
        running.start()
        yield running
    finally:
        running.kill()
