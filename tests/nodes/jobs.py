"""Jobs: one training over several hosts, let on from gate to gate, and what it ended with."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hosts import HERE, PATIENCE, Host
from launchers import COMMANDS
from support.rank_processes import until


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Job:
    """A training of `ranks` ranks on each host, begun by that kind of launcher.

    `kind` is one of `launchers`, which is run, or one of `node_launcher`, whose words are used.

    Every rank takes `steps` steps, `every` seconds apart, and waits at each of the `gates` until it
    is opened. `unwatched` hosts run it without sentinel.
    """

    folder: Path
    hosts: Sequence[Host]
    steps: int
    every: float = 0.02
    gates: Sequence[int] = ()
    ranks: int = 2
    kind: str = "torchelastic"
    name: str = "nodes"
    script: str = "plain_ranks.py"
    unwatched: Sequence[Host] = ()
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = {"name": self.name, "steps": self.steps, "every": self.every, "gates": self.gates}
        self.plan = self.folder / "plan.json"
        self.plan.write_text(json.dumps(plan))
        self.launchers: dict[Host, subprocess.Popen[bytes]] = {}

    @property
    def world(self) -> list[int]:
        """Every rank."""
        return [*range(self.ranks * len(self.hosts))]

    def of(self, host: Host) -> list[int]:
        """The ranks on that host."""
        first = self.ranks * self.hosts.index(host)
        return [*range(first, first + self.ranks)]

    def start(self) -> Job:
        """Begin on every host."""
        for host in self.hosts:
            self.begin(host)
        return self

    def begin(self, host: Host) -> None:
        """Begin on that host."""
        more = {"SENTINEL_OFF": "1"} if host in self.unwatched else {}
        script = (HERE / self.script, self.plan)
        if self.kind in COMMANDS:
            words = (*COMMANDS[self.kind](self, host), *script)
        else:
            words = (HERE / "node_launcher.py", json.dumps(self._told(host)), *script)
        self.launchers[host] = host.python(*words, **more)

    def _told(self, host: Host) -> dict[str, object]:
        return {
            "kind": self.kind,
            "node": self.hosts.index(host),
            "nodes": len(self.hosts),
            "ranks": self.ranks,
            "head": self.hosts[0].address,
            "port": self.port,
        }

    def at(self, gate: int, ranks: Sequence[int] | None = None) -> None:
        """Wait until these ranks, or all of them, are at that gate."""
        waited = self.world if ranks is None else ranks
        there = [self.folder / f"{rank}-at-{gate}" for rank in waited]
        hosts = [host for host in self.hosts if {*self.of(host)} & {*waited}]

        def broken() -> str:
            return "".join(host.said for host in hosts if self.launchers[host].poll())

        until(lambda: broken() or all(path.exists() for path in there), PATIENCE, f"gate {gate}")
        assert not broken(), broken()

    def open(self, *gates: int) -> None:
        """Let the ranks go on."""
        for gate in gates:
            (self.folder / f"open-{gate}").touch()

    def codes(self) -> list[int]:
        """How the training ended on each host, once it has."""
        return [self.launchers[host].wait(PATIENCE) for host in self.hosts]
