"""Roster: the nodes of a run as its head knows them: who is there, who has ended, who is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sentinel.cluster.listening_time import ListeningClock
from sentinel.cluster.member import Member, load_members, save_member

AWAY_AFTER_SECONDS = 2.0
"""Without a word, though a node's agent has one each second."""
LOST_AFTER_SECONDS = 10.0
"""Without a word, after which a node whose ranks have not ended is held to be lost."""
RECONNECT_GRACE_SECONDS = 30.0
"""What the nodes have more of to find a head that was killed and is back."""
ABANDON_AFTER_SECONDS = 60.0
"""After which nobody waits for ranks that were lost, or never heard, if all others have ended."""
OWN_NODE_NAME = ""
"""The name of our own node."""


class Membership:
    """All nodes, ours at `host` among them; remembered in the database.

    `clock` gives seconds since the epoch. Attempts are those of the run.
    """

    def __init__(
        self, host: str, connection: sqlite3.Connection, clock: Callable[[], float]
    ) -> None:
        self.connection = connection
        self.listening_clock = ListeningClock(clock)
        self.members = load_members(connection)
        for member in self.members.values():
            member.last_seen_at = RECONNECT_GRACE_SECONDS
        self.own_member = self.members.setdefault(OWN_NODE_NAME, Member(OWN_NODE_NAME, host))
        self.by_slot: dict[int, Member] = {}
        self.last_record_at = 0.0
        """When any rank last said anything, as `awake` counts."""

    def join(self, slot: int, node_info: Mapping[str, str], run: str) -> tuple[Member, int]:
        """A node begins a correspondence; the slot of its last one is returned too, 0 if none."""
        name = f"{node_info.get('host', '')}/{node_info.get('run', '')}"
        member = self.members.setdefault(name, Member(name))
        before = member.slot if self.by_slot.pop(member.slot, None) else 0
        member.start_session(slot, node_info, run)
        member.last_seen_at = self.listening_clock.seconds
        self.by_slot[slot] = member
        return member, before

    def persist(self) -> None:
        """Store what changed, within the caller's transaction."""
        for member in self.members.values():
            if member.has_unsaved_changes:
                save_member(self.connection, member)

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return any(member.has_unsaved_changes for member in self.members.values())

    def present_members(self, attempt: int) -> Iterator[Member]:
        """Our node, and all that correspond with us, or have ranks in that attempt.

        For any thread: whoever shows the nodes asks while others come.
        """
        for member in [*self.members.values()]:
            if (
                member is self.own_member
                or member.slot in self.by_slot
                or attempt in member.ranks_by_attempt
            ):
                yield member

    def silent_seconds(self, member: Member) -> float:
        """Seconds for which it was not heard; 0 for our own node."""
        return (
            0.0
            if member is self.own_member
            else max(0.0, self.listening_clock.seconds - member.last_seen_at)
        )

    def is_lost(self, member: Member, attempt: int) -> bool:
        """Whether it is not heard, though its ranks in that attempt had not ended by its word."""
        if self.silent_seconds(member) <= LOST_AFTER_SECONDS:
            return False
        return member.has_unended_ranks(attempt) or member.abandoned_attempt == attempt

    def away_ranks(self, members: Iterable[Member], attempt: int) -> list[int]:
        """Of nodes waited for, ranks that may be heard again, though now their nodes are not."""
        silent = [each for each in members if self._is_away(each)]
        return sorted(
            r for m in silent if not self.is_lost(m, attempt) for r in m.unended_ranks(attempt)
        )

    def _is_away(self, member: Member) -> bool:
        linked = member is self.own_member or member.slot in self.by_slot
        return not linked or self.silent_seconds(member) > AWAY_AFTER_SECONDS

    def has_missing_ranks(self, attempt: int, world_size: int) -> bool:
        """Whether some of its ranks, `world` in all, are still to be heard for the first time."""
        heard = sum(
            len(member.ranks_by_attempt.get(attempt, ()))
            for member in self.present_members(attempt)
        )
        return (
            heard < world_size
            and self.listening_clock.seconds - self.last_record_at < ABANDON_AFTER_SECONDS
        )

    def unended_members(self, attempt: int) -> Iterator[Member]:
        """Those with ranks whose end is not known, lost nodes too."""
        return (
            member for member in self.present_members(attempt) if member.has_unended_ranks(attempt)
        )

    def node_status(self, attempt: int) -> list[dict[str, Any]]:
        """Each node in plain words: host, ranks, state, silent_seconds and skew_seconds.

        The state is up, lost or ended.
        """
        return [
            {
                "host": member.host,
                "ranks": sorted(member.ranks_by_attempt.get(attempt, ())),
                "state": self._state(member, attempt),
                "silent_seconds": self.silent_seconds(member),
                "skew_seconds": member.clock_skew_seconds,
            }
            for member in self.present_members(attempt)
        ]

    def _state(self, member: Member, attempt: int) -> str:
        if self.is_lost(member, attempt):
            return "lost"
        return (
            "up"
            if member.has_unended_ranks(attempt) or attempt not in member.ranks_by_attempt
            else "ended"
        )
