"""Jobs: one training on several hosts, released barrier by barrier, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hosts import HERE, TIMEOUT_SECONDS, Host
from launchers import COMMANDS
from programs import free_port
from support.rank_processes import until


@dataclass
class Job:
    """A training with `ranks` ranks on each host, started by that kind of launcher.

    `kind` is a launcher of `launchers`, which is run, or one of `node_launcher`, whose environment
    is reproduced. Every rank takes `steps` steps, `step_seconds` apart, and waits at each of the
    `barriers` until it is released. `unmonitored` hosts run without sentinel. The script is
    monitored by its decorator, or by `sentinel run` if `under_run` is set.
    """

    under_run: ClassVar[bool] = False

    folder: Path
    hosts: Sequence[Host]
    steps: int
    step_seconds: float = 0.02
    barriers: Sequence[int] = ()
    ranks: int = 2
    kind: str = "torchelastic"
    name: str = "nodes"
    script: str = "plain_ranks.py"
    unmonitored: Sequence[Host] = ()
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = {
            "name": self.name,
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "barriers": self.barriers,
            "decorated": not self.under_run,
        }
        self.plan = self.folder / "plan.json"
        self.plan.write_text(json.dumps(plan))
        self.launchers: dict[Host, subprocess.Popen[bytes]] = {}

    @property
    def all_ranks(self) -> list[int]:
        """All ranks."""
        return [*range(self.ranks * len(self.hosts))]

    def ranks_of(self, host: Host) -> list[int]:
        """The ranks on that host."""
        first = self.ranks * self.hosts.index(host)
        return [*range(first, first + self.ranks)]

    def start(self) -> Job:
        """Start on every host."""
        for host in self.hosts:
            self.start_on(host)
        return self

    def start_on(self, host: Host) -> None:
        """Start on that host."""
        variables = {"SENTINEL_OFF": "1"} if host in self.unmonitored else {}
        script = (HERE / self.script, self.plan)
        if self.kind in COMMANDS:
            words = (*COMMANDS[self.kind](self, host), *script)
        else:
            words = (HERE / "node_launcher.py", json.dumps(self._node_description(host)), *script)
        if self.under_run:
            words = ("-m", "sentinel", "run", "--run", self.name, "--", sys.executable, *words)
        self.launchers[host] = host.python(*words, **variables)

    def _node_description(self, host: Host) -> dict[str, object]:
        return {
            "kind": self.kind,
            "node": self.hosts.index(host),
            "nodes": len(self.hosts),
            "ranks": self.ranks,
            "head": self.hosts[0].address,
            "port": self.port,
        }

    def wait_at(self, barrier: int, ranks: Sequence[int] | None = None) -> None:
        """Wait until these ranks, or all, are at that barrier; fails if a launcher fails."""
        expected = self.all_ranks if ranks is None else ranks
        paths = [self.folder / f"{rank}-at-{barrier}" for rank in expected]
        hosts = [host for host in self.hosts if {*self.ranks_of(host)} & {*expected}]

        def failed_output() -> str:
            return "".join(host.output for host in hosts if self.launchers[host].poll())

        until(
            lambda: failed_output() or all(path.exists() for path in paths),
            TIMEOUT_SECONDS,
            f"barrier {barrier}",
        )
        assert not failed_output(), failed_output()

    def release(self, *barriers: int) -> None:
        """Release the ranks at these barriers."""
        for barrier in barriers:
            (self.folder / f"release-{barrier}").touch()

    def exit_codes(self) -> list[int]:
        """The exit codes of the launchers, once they have ended."""
        return [self.launchers[host].wait(TIMEOUT_SECONDS) for host in self.hosts]
