"""Maps the attempts that each node counts to attempts of the run.

Each node counts its own attempts: after a reboot it starts at 0 again, and it may skip numbers.
Attempts of several nodes that run at the same time are one attempt of the run. They are matched by
the START of their ranks: world size, master port, start time and ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sentinel.model.number_ranges import format_ranges, parse_ranges

MAX_ATTEMPTS_KEPT = 32
"""Limit of stored attempts of the run, and of each node; the newest are kept."""

MAX_NODES_KEPT = 16384
"""Limit of stored nodes. A node that returns after a reboot counts as another."""

START_TOLERANCE_SECONDS = 5.0
"""How much earlier than the first known rank of an attempt another one may have started."""


@dataclass(slots=True)
class Attempt:
    """One attempt of the run. world_size 0, master_port "" and started_at 0 mean unknown."""

    world_size: int = 0
    master_port: str = ""
    started_at: float = 0.0
    ranks: set[int] = field(default_factory=set)

    def accepts(self, rank: int, world_size: int, master_port: str) -> bool:
        """Whether that rank may belong to this attempt."""
        sizes, ports = {self.world_size, world_size} - {0}, {self.master_port, master_port} - {""}
        return len(sizes) <= 1 and len(ports) <= 1 and rank not in self.ranks

    def add_rank(self, rank: int, world_size: int, master_port: str) -> None:
        """Add a rank of this attempt."""
        self.ranks.add(rank)
        self.world_size, self.master_port = (
            self.world_size or world_size,
            self.master_port or master_port,
        )


@dataclass
class AttemptMap:
    """Maps attempts of nodes to attempts of the run; bounded in memory.

    `attempts` are the newest attempts of the run by number. `node_attempts` maps, by node, its own
    attempt numbers to those of the run.
    """

    attempts: dict[int, Attempt] = field(default_factory=dict)
    node_attempts: dict[str, dict[int, int]] = field(default_factory=dict)
    _serialized: str = field(default="", compare=False, repr=False)
    """Result of `serialize`, until the map changes."""

    @property
    def current(self) -> int:
        """The newest attempt of the run; -1 before any."""
        return max(self.attempts, default=-1)

    def run_attempt(self, node: str, node_attempt: int) -> int | None:
        """The attempt of the run for an attempt of that node; None if it is not assigned yet."""
        return self.node_attempts.get(node, {}).get(node_attempt)

    def assign(  # noqa: PLR0913 - the fields of a START
        self,
        node: str,
        node_attempt: int,
        rank: int,
        world_size: int,
        master_port: str = "",
        *,
        started_at: float = 0.0,
    ) -> int:
        """Assign a rank that started on that node to an attempt of the run, which is returned.

        `node_attempt` is the node's own number, `world_size` 0 if unknown, `master_port` that of
        the rendezvous. `started_at`, in seconds since the epoch, assigns a START that arrives
        several attempts late.
        """
        self._serialized = ""
        known = self.run_attempt(node, node_attempt)
        if known is None:
            known = self._earlier_attempt(node, node_attempt)
        if known is None:
            known = self._matching_or_next(node, rank, world_size, master_port, started_at)
            self._remember(node, node_attempt, known)
            self.attempts.setdefault(known, Attempt(started_at=started_at))
            for old in sorted(self.attempts)[:-MAX_ATTEMPTS_KEPT]:
                del self.attempts[old]
        if known in self.attempts:
            self.attempts[known].add_rank(rank, world_size, master_port)
        return known

    def serialize(self) -> str:
        """As JSON, for `deserialize`."""
        if self._serialized:
            return self._serialized
        attempts = {
            number: [
                each.world_size,
                each.master_port,
                each.started_at,
                ",".join(format_ranges(each.ranks)),
            ]
            for number, each in self.attempts.items()
        }
        fields = {"attempts": attempts, "nodes": self.node_attempts}
        self._serialized = json.dumps(fields, separators=(",", ":"))
        return self._serialized

    @classmethod
    def deserialize(cls, text: str) -> AttemptMap:
        """From the result of `serialize`; empty from "". Raises ValueError for anything else."""
        try:
            fields: Mapping[str, Any] = json.loads(text) if text else {"attempts": {}, "nodes": {}}
            attempts = {
                int(number): _parse_attempt(*row) for number, row in fields["attempts"].items()
            }
            nodes = {
                str(node): {int(own): int(number) for own, number in by_own.items()}
                for node, by_own in fields["nodes"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"not a serialized attempt map: {text[:80]!r}"
            raise ValueError(message) from error
        return cls(attempts, nodes)

    def _earlier_attempt(self, node: str, node_attempt: int) -> int | None:
        """The attempt of the run for an attempt that arrives after a later one of the same node."""
        later = [n for own, n in self.node_attempts.get(node, {}).items() if own > node_attempt]
        return min(later) - 1 if later else None

    def _matching_or_next(
        self, node: str, rank: int, world_size: int, master_port: str, started_at: float
    ) -> int:
        """The attempt of the run for a new attempt of the node: a known one, or the next."""
        last_assigned = max(self.node_attempts.get(node, {}).values(), default=-1)
        newest_started = self._newest_started_by(started_at)
        oldest = min(self.attempts, default=0)
        if last_assigned < newest_started < oldest:
            # It belongs to an attempt that is no longer stored.
            return newest_started
        first_candidate = max(newest_started, last_assigned + 1)
        candidates = sorted(number for number in self.attempts if number >= first_candidate)
        matching = (
            n for n in candidates if self.attempts[n].accepts(rank, world_size, master_port)
        )
        return next(matching, self.current + 1)

    def _newest_started_by(self, time: float) -> int:
        """The newest attempt that had started by that time, within the tolerance."""
        known = sorted(self.attempts)
        if not time or not known:
            return self.current
        for older, newer in reversed([*pairwise(known)]):
            started_at = self.attempts[newer].started_at
            gap = started_at - self.attempts[older].started_at
            # Attempts that crash in quick succession need a smaller tolerance.
            if time >= started_at - min(START_TOLERANCE_SECONDS, max(0.0, gap / 4)):
                return newer
        is_discarded = (
            known[0] > 0 and time < self.attempts[known[0]].started_at - START_TOLERANCE_SECONDS
        )
        return known[0] - is_discarded

    def _remember(self, node: str, node_attempt: int, run_attempt: int) -> None:
        own = self.node_attempts.setdefault(node, {})
        own[node_attempt] = run_attempt
        for old in sorted(own)[:-MAX_ATTEMPTS_KEPT]:
            del own[old]
        if len(self.node_attempts) > MAX_NODES_KEPT:
            del self.node_attempts[
                min(self.node_attempts, key=lambda each: max(self.node_attempts[each].values()))
            ]


def _parse_attempt(world_size: int, master_port: str, started_at: float, ranks: str) -> Attempt:
    return Attempt(int(world_size), str(master_port), float(started_at), set(parse_ranges(ranks)))
