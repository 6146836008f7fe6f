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

from sentinel.stats.number_ranges import spans

ATTEMPTS_KEPT = 32
"""Newest attempts of the run, and of each node, that are remembered."""

MOST_NODES = 16384
"""Nodes that are remembered: one that comes back after a reboot counts as another."""

BEFORE_SECONDS = 5.0
"""How much earlier than the first that was heard of it a rank of an attempt may have begun."""


@dataclass(slots=True)
class Attempt:
    """What is known of one attempt of the run: `world` 0, `port` "" and `began` 0 are not known."""

    world: int = 0
    port: str = ""
    began: float = 0.0
    ranks: set[int] = field(default_factory=set)

    def takes(self, rank: int, world: int, port: str) -> bool:
        """Whether that rank may be part of it."""
        sizes, ports = {self.world, world} - {0}, {self.port, port} - {""}
        return len(sizes) <= 1 and len(ports) <= 1 and rank not in self.ranks

    def learn(self, rank: int, world: int, port: str) -> None:
        """That rank is part of it."""
        self.ranks.add(rank)
        self.world, self.port = self.world or world, self.port or port


@dataclass
class Generations:
    """Which attempt of the whole run each node's own attempts belong to; bounded in memory.

    `attempts` are the newest of the run, by number; `nodes` tell of each node which of its own
    attempts is which of the run.
    """

    attempts: dict[int, Attempt] = field(default_factory=dict)
    nodes: dict[str, dict[int, int]] = field(default_factory=dict)
    _text: str = field(default="", compare=False, repr=False)
    """What `kept` gave, while it is still so."""

    @property
    def current(self) -> int:
        """The newest attempt of the run; -1 before any."""
        return max(self.attempts, default=-1)

    def of(self, node: str, theirs: int) -> int | None:
        """The attempt of the run that is this one of the node's; None where nobody knows yet."""
        return self.nodes.get(node, {}).get(theirs)

    def place(  # noqa: PLR0913 - all that a rank says of itself as it begins
        self, node: str, theirs: int, rank: int, world: int, port: str = "", *, time: float = 0.0
    ) -> int:
        """The attempt of the run of which a rank tells that it began on that node.

        `theirs` is the node's own number of it, `world` the size of the rank's world, 0 where it is
        not known, `port` where its ranks meet. `time`, in seconds since the epoch, is when it
        began: by it, a node whose words come late by whole attempts still finds its own.
        """
        self._text = ""
        known = self.of(node, theirs)
        if known is None:
            known = self._of_old(node, theirs)
        if known is None:
            known = self._found(node, rank, world, port, time)
            self._remember(node, theirs, known)
            self.attempts.setdefault(known, Attempt(began=time))
            for old in sorted(self.attempts)[:-ATTEMPTS_KEPT]:
                del self.attempts[old]
        if known in self.attempts:
            self.attempts[known].learn(rank, world, port)
        return known

    def kept(self) -> str:
        """All of it as text, for `restored`."""
        if self._text:
            return self._text
        attempts = {
            number: [each.world, each.port, each.began, ",".join(spans(each.ranks))]
            for number, each in self.attempts.items()
        }
        told = {"attempts": attempts, "nodes": self.nodes}
        self._text = json.dumps(told, separators=(",", ":"))
        return self._text

    @classmethod
    def restored(cls, text: str) -> Generations:
        """What `kept` gave, or nothing from "". Raises ValueError where it is anything else."""
        try:
            told: Mapping[str, Any] = json.loads(text) if text else {"attempts": {}, "nodes": {}}
            attempts = {int(number): _attempt(*row) for number, row in told["attempts"].items()}
            nodes = {
                str(node): {int(theirs): int(ours) for theirs, ours in known.items()}
                for node, known in told["nodes"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"these are no attempts of nodes: {text[:80]!r}"
            raise ValueError(message) from error
        return cls(attempts, nodes)

    def _of_old(self, node: str, theirs: int) -> int | None:
        """The number of an attempt that is told of only after a later one of the same node."""
        later = [n for own, n in self.nodes.get(node, {}).items() if own > theirs]
        return min(later) - 1 if later else None

    def _found(self, node: str, rank: int, world: int, port: str, time: float) -> int:
        """The attempt that this one of the node's is part of: one of them, or the next."""
        before = max(self.nodes.get(node, {}).values(), default=-1)
        first = self._at(time)
        oldest = min(self.attempts, default=0)
        if before < first < oldest:
            # Of an attempt that was forgotten long ago.
            return first
        since = max(first, before + 1)
        known = sorted(number for number in self.attempts if number >= since)
        fits = (n for n in known if self.attempts[n].takes(rank, world, port))
        return next(fits, self.current + 1)

    def _at(self, time: float) -> int:
        """The newest attempt that had begun by then, or was about to."""
        known = sorted(self.attempts)
        if not time or not known:
            return self.current
        for older, newer in reversed([*pairwise(known)]):
            began = self.attempts[newer].began
            gap = began - self.attempts[older].began
            # Where one crash follows the other, they are told apart by less.
            if time >= began - min(BEFORE_SECONDS, max(0.0, gap / 4)):
                return newer
        forgotten = known[0] > 0 and time < self.attempts[known[0]].began - BEFORE_SECONDS
        return known[0] - forgotten

    def _remember(self, node: str, theirs: int, ours: int) -> None:
        own = self.nodes.setdefault(node, {})
        own[theirs] = ours
        for old in sorted(own)[:-ATTEMPTS_KEPT]:
            del own[old]
        if len(self.nodes) > MOST_NODES:
            del self.nodes[min(self.nodes, key=lambda each: max(self.nodes[each].values()))]


def _attempt(world: int, port: str, began: float, ranks: str) -> Attempt:
    return Attempt(int(world), str(port), float(began), set(_numbers(ranks)))


def _numbers(stretches: str) -> Iterable[int]:
    """The numbers of such stretches, as `spans` gives them.

    >>> [*_numbers("0-2,7")]
    [0, 1, 2, 7]
    """
    for span in filter(None, stretches.split(",")):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)
