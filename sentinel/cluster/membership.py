"""Roster: the nodes of a run as its head knows them: who is there, who has ended, who is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sentinel.cluster.listening_time import Awake
from sentinel.cluster.member import Member, store, stored

AWAY_SECONDS = 2.0
"""Without a word, though a node's agent has one each second."""
LOST_SECONDS = 10.0
"""Without a word, after which a node whose ranks have not ended is held to be lost."""
RETURN_SECONDS = 30.0
"""What the nodes have more of to find a head that was killed and is back."""
FOR_GOOD_SECONDS = 60.0
"""After which nobody waits for ranks that were lost, or never heard, if all others have ended."""
OURS = ""
"""The name of our own node."""


class Roster:
    """All nodes, ours at `host` among them; remembered in the database.

    `clock` gives seconds since the epoch. Attempts are those of the run.
    """

    def __init__(
        self, host: str, connection: sqlite3.Connection, clock: Callable[[], float]
    ) -> None:
        self.connection = connection
        self.awake = Awake(clock)
        self.known = stored(connection)
        for member in self.known.values():
            member.heard_at = RETURN_SECONDS
        self.own = self.known.setdefault(OURS, Member(OURS, host))
        self.by_slot: dict[int, Member] = {}
        self.heard_at = 0.0
        """When any rank last said anything, as `awake` counts."""

    def enter(self, slot: int, card: Mapping[str, str], run: str) -> tuple[Member, int]:
        """A node begins a correspondence; the slot of its last one is returned too, 0 if none."""
        name = f"{card.get('host', '')}/{card.get('run', '')}"
        member = self.known.setdefault(name, Member(name))
        before = member.slot if self.by_slot.pop(member.slot, None) else 0
        member.begin(slot, card, run)
        member.heard_at = self.awake.seconds
        self.by_slot[slot] = member
        return member, before

    def keep(self) -> None:
        """Store what changed, within the caller's transaction."""
        for member in self.known.values():
            if member.due:
                store(self.connection, member)

    @property
    def due(self) -> bool:
        """Whether there is anything to store."""
        return any(member.due for member in self.known.values())

    def present(self, attempt: int) -> Iterator[Member]:
        """Our node, and all that correspond with us, or have ranks in that attempt.

        For any thread: whoever shows the nodes asks while others come.
        """
        for member in [*self.known.values()]:
            if member is self.own or member.slot in self.by_slot or attempt in member.ranks:
                yield member

    def silent(self, member: Member) -> float:
        """Seconds for which it was not heard; 0 for our own node."""
        return 0.0 if member is self.own else max(0.0, self.awake.seconds - member.heard_at)

    def lost(self, member: Member, attempt: int) -> bool:
        """Whether it is not heard, though its ranks in that attempt had not ended by its word."""
        if self.silent(member) <= LOST_SECONDS:
            return False
        return member.goes_on(attempt) or member.given_up == attempt

    def away(self, waiting: Iterable[Member], attempt: int) -> list[int]:
        """Of nodes waited for, ranks that may be heard again, though now their nodes are not."""
        silent = [each for each in waiting if self._is_away(each)]
        return sorted(r for m in silent if not self.lost(m, attempt) for r in m.unended(attempt))

    def _is_away(self, member: Member) -> bool:
        linked = member is self.own or member.slot in self.by_slot
        return not linked or self.silent(member) > AWAY_SECONDS

    def misses(self, attempt: int, world: int) -> bool:
        """Whether some of its ranks, `world` in all, are still to be heard for the first time."""
        heard = sum(len(member.ranks.get(attempt, ())) for member in self.present(attempt))
        return heard < world and self.awake.seconds - self.heard_at < FOR_GOOD_SECONDS

    def waited_for(self, attempt: int) -> Iterator[Member]:
        """Those with ranks whose end is not known, lost nodes too."""
        return (member for member in self.present(attempt) if member.goes_on(attempt))

    def told(self, attempt: int) -> list[dict[str, Any]]:
        """Each node in plain words: host, ranks, state, silent_seconds and skew_seconds.

        The state is up, lost or ended.
        """
        return [
            {
                "host": member.host,
                "ranks": sorted(member.ranks.get(attempt, ())),
                "state": self._state(member, attempt),
                "silent_seconds": self.silent(member),
                "skew_seconds": member.skew,
            }
            for member in self.present(attempt)
        ]

    def _state(self, member: Member, attempt: int) -> str:
        if self.lost(member, attempt):
            return "lost"
        return "up" if member.goes_on(attempt) or attempt not in member.ranks else "ended"
