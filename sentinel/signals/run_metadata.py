"""About: what a run says of itself, or gives away, that decides what its keys mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.record import Record
from sentinel.signals.key_map import FACTS, Dialect, detect, dialect
from sentinel.signals.kl import ABOUT
from sentinel.transport.ring_layout import COLLECTIVE, UNKNOWN

MOST_KEYS = 1024
"""Keys of a run whose framework nobody told that are looked at; by then it is none of ours."""


@dataclass(slots=True)
class About:
    """`facts` are those of `ABOUT` that are known; `keys` are looked at while they tell nothing.

    `hosts` are those of ranks that told theirs.
    """

    facts: dict[str, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        """How the run speaks."""
        return dialect(self.facts)

    def learn(self, told: Mapping[str, str], *, late: bool = False) -> None:
        """Take facts over; `late` ones say nothing against those that are known.

        Nor does a framework that others are built on unsay the one that is built on it.
        """
        news = {name: told[name] for name in ABOUT if name in told}
        if self.dialect.framework and not dialect(news).framework:
            news = {name: fact for name, fact in news.items() if name not in FACTS}
        self.facts = {**news, **self.facts} if late else {**self.facts, **news}

    def meet(self, start: Record) -> None:
        """Take over what a rank says of itself, and of the run, when it starts."""
        self.learn(start.facts, late=True)
        if "host" in start.facts:
            self.hosts[start.rank] = start.facts["host"]

    def hear(self, keys: Iterable[str]) -> None:
        """Look for a framework in the keys of a record, and of those before it."""
        if self.dialect.framework or len(self.keys) >= MOST_KEYS or self.keys.issuperset(keys):
            return
        self.keys.update(keys)
        self.learn(detect(self.keys))
        if self.dialect.framework:
            self.keys.clear()


def gathers_no_more(record: Record) -> bool:
    """Whether it is said of a collective that from now on each node's own agent tells of its ranks.

    They are to be waited for as at a start.
    """
    return record.rank == 0 and record.facts.get(COLLECTIVE, "").startswith("off")


def is_told_elsewhere(stop: Record) -> bool:
    """Whether a rank ended for the collective alone, as far as anybody knows."""
    return COLLECTIVE in stop.facts and stop.facts.get("outcome") in ("finished", UNKNOWN)


def is_provisional(stop: Record) -> bool:
    """Whether a rank's own node may yet tell more of that end; or that it is none."""
    return stop.facts.get("outcome") == UNKNOWN or is_told_elsewhere(stop)
