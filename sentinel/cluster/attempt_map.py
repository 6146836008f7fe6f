"""Generations: which attempt of the whole run each node's own attempts belong to.

Every node counts its own: one that was rebooted begins at 0 again, and numbers may be skipped. The
attempts of all nodes that run at the same time are one attempt of the run, which is known by what
its ranks say as they begin: the size of their world, where they meet, when, and who they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sentinel.stats.number_ranges import format_ranges

MAX_ATTEMPTS_KEPT = 32
"""Newest attempts of the run, and of each node, that are remembered."""

MAX_NODES_KEPT = 16384
"""Nodes that are remembered: one that comes back after a reboot counts as another."""

START_TOLERANCE_SECONDS = 5.0
"""How much earlier than the first that was heard of it a rank of an attempt may have begun."""


@dataclass(slots=True)
class Attempt:
    """What is known of one attempt of the run: `world` 0, `port` "" and `began` 0 are not known."""

    world_size: int = 0
    master_port: str = ""
    started_at: float = 0.0
    ranks: set[int] = field(default_factory=set)

    def accepts(self, rank: int, world_size: int, master_port: str) -> bool:
        """Whether that rank may be part of it."""
        sizes, ports = {self.world_size, world_size} - {0}, {self.master_port, master_port} - {""}
        return len(sizes) <= 1 and len(ports) <= 1 and rank not in self.ranks

    def add_rank(self, rank: int, world_size: int, master_port: str) -> None:
        """That rank is part of it."""
        self.ranks.add(rank)
        self.world_size, self.master_port = (
            self.world_size or world_size,
            self.master_port or master_port,
        )


@dataclass
class AttemptMap:
    """Which attempt of the whole run each node's own attempts belong to; bounded in memory.

    `attempts` are the newest of the run, by number; `nodes` tell of each node which of its own
    attempts is which of the run.
    """

    attempts: dict[int, Attempt] = field(default_factory=dict)
    node_attempts: dict[str, dict[int, int]] = field(default_factory=dict)
    _serialized: str = field(default="", compare=False, repr=False)
    """What `kept` gave, while it is still so."""

    @property
    def current(self) -> int:
        """The newest attempt of the run; -1 before any."""
        return max(self.attempts, default=-1)

    def run_attempt(self, node: str, node_attempt: int) -> int | None:
        """The attempt of the run that is this one of the node's; None where nobody knows yet."""
        return self.node_attempts.get(node, {}).get(node_attempt)

    def assign(  # noqa: PLR0913 - all that a rank says of itself as it begins
        self,
        node: str,
        node_attempt: int,
        rank: int,
        world_size: int,
        master_port: str = "",
        *,
        started_at: float = 0.0,
    ) -> int:
        """The attempt of the run of which a rank tells that it began on that node.

        `theirs` is the node's own number of it, `world` the size of the rank's world, 0 where it is
        not known, `port` where its ranks meet. `time`, in seconds since the epoch, is when it
        began: by it, a node whose words come late by whole attempts still finds its own.
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
        """All of it as text, for `restored`."""
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
        told = {"attempts": attempts, "nodes": self.node_attempts}
        self._serialized = json.dumps(told, separators=(",", ":"))
        return self._serialized

    @classmethod
    def deserialize(cls, text: str) -> AttemptMap:
        """What `kept` gave, or nothing from "". Raises ValueError where it is anything else."""
        try:
            told: Mapping[str, Any] = json.loads(text) if text else {"attempts": {}, "nodes": {}}
            attempts = {
                int(number): _parse_attempt(*row) for number, row in told["attempts"].items()
            }
            nodes = {
                str(node): {int(theirs): int(ours) for theirs, ours in known.items()}
                for node, known in told["nodes"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"these are no attempts of nodes: {text[:80]!r}"
            raise ValueError(message) from error
        return cls(attempts, nodes)

    def _earlier_attempt(self, node: str, node_attempt: int) -> int | None:
        """The number of an attempt that is told of only after a later one of the same node."""
        later = [n for own, n in self.node_attempts.get(node, {}).items() if own > node_attempt]
        return min(later) - 1 if later else None

    def _matching_or_next(
        self, node: str, rank: int, world_size: int, master_port: str, started_at: float
    ) -> int:
        """The attempt that this one of the node's is part of: one of them, or the next."""
        before = max(self.node_attempts.get(node, {}).values(), default=-1)
        first = self._newest_started_by(started_at)
        oldest = min(self.attempts, default=0)
        if before < first < oldest:
            # Of an attempt that was forgotten long ago.
            return first
        since = max(first, before + 1)
        known = sorted(number for number in self.attempts if number >= since)
        fits = (n for n in known if self.attempts[n].accepts(rank, world_size, master_port))
        return next(fits, self.current + 1)

    def _newest_started_by(self, time: float) -> int:
        """The newest attempt that had begun by then, or was about to."""
        known = sorted(self.attempts)
        if not time or not known:
            return self.current
        for older, newer in reversed([*pairwise(known)]):
            began = self.attempts[newer].started_at
            gap = began - self.attempts[older].started_at
            # Where one crash follows the other, they are told apart by less.
            if time >= began - min(START_TOLERANCE_SECONDS, max(0.0, gap / 4)):
                return newer
        forgotten = (
            known[0] > 0 and time < self.attempts[known[0]].started_at - START_TOLERANCE_SECONDS
        )
        return known[0] - forgotten

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
    return Attempt(int(world_size), str(master_port), float(started_at), set(_parse_ranges(ranks)))


def _parse_ranges(ranges: str) -> Iterable[int]:
    """The numbers of such stretches, as `spans` gives them.

    >>> [*_numbers("0-2,7")]
    [0, 1, 2, 7]
    """
    for span in filter(None, ranges.split(",")):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)
