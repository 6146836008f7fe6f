"""The nodes of a run as its head knows them: connected, ended or lost; stored in the database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from struct import Struct
from typing import Any

from sentinel.cluster.heartbeats import UNSENT_KEY
from sentinel.cluster.listening_clock import ListeningClock
from sentinel.cluster.member import Member
from sentinel.model.record import Event, Record, is_provisional_stop

UNREACHABLE_AFTER_SECONDS = 2.0
"""Silence after which a node counts as unreachable; its agent sends a heartbeat each second."""
MAX_BEHIND_SECONDS = 60.0
"""How long steps wait for a node that still sends older records."""
LOST_AFTER_SECONDS = 10.0
"""Silence after which a node whose ranks have not ended is considered lost."""
RECONNECT_GRACE_SECONDS = 30.0
"""Additional time for the nodes to find a head that was restarted."""
ABANDON_AFTER_SECONDS = 60.0
"""Silence after which lost ranks, or ranks that never started, are given up if all others ended."""
OWN_NODE_NAME = ""
"""The name of the local node."""

_SEQUENCE_STRUCT = Struct("<qqI")
"""Attempt, rank, and the sequence number of its newest record."""


class Membership:
    """All nodes, including the local one at `host`; restored from the database.

    `clock` returns seconds since the epoch. Attempts are those of the run.
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
        self._last_record_at = 0.0
        """When a record of a rank last arrived, by the listening clock."""
        self._collective_ranks: set[int] = set()
        """Ranks of other nodes whose records rank 0 gathered."""
        self._provisional_stop_at = -inf
        """When a rank last ended in a way that its own node may still explain."""

    def join(self, slot: int, node_info: Mapping[str, str], run: str) -> tuple[Member, int]:
        """Start a session of a node. Returns it, and the slot of its previous session or 0."""
        name = f"{node_info.get('host', '')}/{node_info.get('run', '')}"
        member = self.members.setdefault(name, Member(name))
        previous_slot = member.slot if self.by_slot.pop(member.slot, None) else 0
        member.start_session(slot, node_info, run)
        member.last_seen_at = self.listening_clock.seconds
        self.by_slot[slot] = member
        return member, previous_slot

    def end_sessions(self) -> None:
        """End the sessions of all nodes: the store in which they had slots is closed."""
        self.by_slot.clear()

    def persist(self) -> None:
        """Store what changed, within the caller's transaction."""
        save_members(self.connection, self.members.values())

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return any(member.has_unsaved_changes for member in self.members.values())

    def note_record(self) -> None:
        """Note that a record of a rank arrived."""
        self._last_record_at = self.listening_clock.seconds

    def accepts_own_record(self, attempt: int, record: Record) -> bool:
        """Whether a record of the local node counts.

        Rank 0 may gather the records of all ranks (see docs/collective.md). Once a rank's own node
        sends them, the gathered ones are ignored, except for the STOP.
        """
        if "via_collective" in record.attributes:
            self._collective_ranks.add(record.rank)
        if record.event is Event.STOP:
            if is_provisional_stop(record):
                self._provisional_stop_at = self.listening_clock.seconds
            return True
        if record.rank not in self._collective_ranks:
            return True
        others = self.by_slot.values()
        return not any(record.rank in each.ranks_by_attempt.get(attempt, ()) for each in others)

    @property
    def is_awaiting_collective_ranks(self) -> bool:
        """Whether nodes of ranks that are no longer gathered may still connect."""
        return self.listening_clock.seconds - self._provisional_stop_at < ABANDON_AFTER_SECONDS

    def present_members(self, attempt: int) -> Iterator[Member]:
        """The local node, and all nodes that are connected or have ranks in that attempt.

        Safe in any thread while nodes join.
        """
        for member in [*self.members.values()]:
            if (
                member is self.own_member
                or member.slot in self.by_slot
                or attempt in member.ranks_by_attempt
            ):
                yield member

    def silent_seconds(self, member: Member) -> float:
        """Seconds since a message of the node arrived; 0 for the local node."""
        if member is self.own_member:
            return 0.0
        return max(0.0, self.listening_clock.seconds - member.last_seen_at)

    def is_lost(self, member: Member, attempt: int) -> bool:
        """Whether the node is silent, though its ranks in that attempt have not ended."""
        if self.silent_seconds(member) <= LOST_AFTER_SECONDS:
            return False
        return member.has_unended_ranks(attempt) or member.abandoned_attempt == attempt

    def note_suspension(self) -> None:
        """Note that this process was suspended: the other nodes have records to send.

        Their next messages may be of the time before.
        """
        for member in self.by_slot.values():
            member.messages_to_catch_up = 2

    def unread_ranks(self, attempt: int, waiting_slots: Collection[int]) -> list[int]:
        """Ranks with records that have not arrived yet, on this node or on others.

        Those of other nodes for up to MAX_BEHIND_SECONDS. `waiting_slots` are the slots with
        messages that have arrived and are not processed.
        """
        ranks: list[int] = []
        for member in self.present_members(attempt):
            attributes = {} if member.heartbeat is None else member.heartbeat.attributes
            unread = attributes.get("unread_ranks", "")
            if member is self.own_member:
                ranks += map(int, unread.split(",") if unread else ())
                continue
            is_behind = (
                unread or UNSENT_KEY in attributes
                or member.messages_to_catch_up or member.slot in waiting_slots
            )  # fmt: skip
            is_sending = is_behind and member.slot in self.by_slot
            if not is_sending or self.is_lost(member, attempt):
                member.behind_since = None
                continue
            now = self.listening_clock.seconds
            member.behind_since = now if member.behind_since is None else member.behind_since
            if now - member.behind_since < MAX_BEHIND_SECONDS:
                ranks += member.unended_ranks(attempt)
        return ranks

    def unreachable_ranks(self, members: Iterable[Member], attempt: int) -> list[int]:
        """Unended ranks of these nodes, where the node is unreachable but not lost."""
        return sorted(
            rank
            for member in members
            if self._is_unreachable(member) and not self.is_lost(member, attempt)
            for rank in member.unended_ranks(attempt)
        )

    def _is_unreachable(self, member: Member) -> bool:
        is_connected = member is self.own_member or member.slot in self.by_slot
        return not is_connected or self.silent_seconds(member) > UNREACHABLE_AFTER_SECONDS

    def unreported_ranks(self, attempt: int, world_size: int) -> list[int]:
        """Those of the `world_size` ranks that have sent nothing yet."""
        seen = [
            member.ranks_by_attempt.get(attempt, set[int]())
            for member in self.present_members(attempt)
        ]
        if sum(map(len, seen)) >= world_size:
            return []
        return sorted(set(range(world_size)).difference(*seen))

    def has_missing_ranks(self, attempt: int, world_size: int) -> bool:
        """Whether some of the `world_size` ranks have sent nothing yet, and may still do so."""
        idle_seconds = self.listening_clock.seconds - self._last_record_at
        return idle_seconds < ABANDON_AFTER_SECONDS and bool(
            self.unreported_ranks(attempt, world_size)
        )

    def reachable_hosts(self, attempt: int) -> set[str]:
        """Hosts all of whose nodes of that attempt sent a message lately. Safe in any thread.

        Several nodes can be on one host.
        """
        members = [*self.present_members(attempt)]
        unreachable = {member.host for member in members if self._is_unreachable(member)}
        return {member.host for member in members} - unreachable

    def unreached_ranks(self, attempt: int, world_size: int) -> list[int]:
        """Those of the `world_size` ranks that no command of this agent reaches.

        Their node is unreachable, or it has no agent since rank 0 gathers their records.
        """
        reached = self.own_member.ranks_by_attempt.get(attempt, set[int]()) - self._collective_ranks
        reached = reached.union(
            *(
                member.ranks_by_attempt.get(attempt, set[int]())
                for member in self.present_members(attempt)
                if member is not self.own_member and not self._is_unreachable(member)
            )
        )
        return sorted(set(range(world_size)) - reached)

    def unended_members(self, attempt: int) -> Iterator[Member]:
        """Nodes with ranks that are not known to have ended, including lost nodes."""
        return (
            member for member in self.present_members(attempt) if member.has_unended_ranks(attempt)
        )

    def node_status(self, attempt: int) -> list[dict[str, Any]]:
        """Each node as JSON: host, ranks, state (up, lost, ended), silent_seconds, skew_seconds."""
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
        is_up = member.has_unended_ranks(attempt) or attempt not in member.ranks_by_attempt
        return "up" if is_up else "ended"


def load_members(connection: sqlite3.Connection) -> dict[str, Member]:
    """The stored nodes by name."""
    rows = connection.execute("select name, spool, row, sequences, state from node")
    return {name: _restore_member(name, *columns) for name, *columns in rows}


def save_members(connection: sqlite3.Connection, members: Iterable[Member]) -> None:
    """Store of each node what changed: position in its spool, sequence numbers, and its state."""
    progress: list[tuple[int, bytes, str]] = []
    states: list[tuple[str, str, str]] = []
    for member in members:
        if member.has_unsaved_changes:
            numbers = member.last_sequences.items()
            sequences = b"".join([_SEQUENCE_STRUCT.pack(*sender, at) for sender, at in numbers])
            progress.append((member.last_row, sequences, member.name))
        if member.has_unsaved_state:
            states.append((member.name, member.spool_id, _serialize_state(member)))
        member.has_unsaved_progress = member.has_unsaved_state = False
    # The larger state seldom changes, the position with each message.
    connection.executemany(
        "insert or replace into node(name, spool, row, sequences, state) values(?, ?, 0, x'', ?)",
        states,
    )
    connection.executemany("update node set row = ?, sequences = ? where name = ?", progress)


def _serialize_state(member: Member) -> str:
    ranks, ended = (
        {attempt: sorted(ranks) for attempt, ranks in by_attempt.items()}
        for by_attempt in (member.ranks_by_attempt, member.ended_by_attempt)
    )
    return json.dumps(
        {
            "host": member.host,
            "start_times": [*member.start_times.items()],
            "incarnation": member.incarnation,
            "ranks_by_attempt": ranks,
            "ended_by_attempt": ended,
            "abandoned_attempt": member.abandoned_attempt,
        }
    )


def _restore_member(
    name: str, spool_id: str, last_row: int, packed_sequences: bytes, serialized_state: str
) -> Member:
    state = json.loads(serialized_state)
    ranks, ended = (
        {int(attempt): set(ranks) for attempt, ranks in state[key].items()}
        for key in ("ranks_by_attempt", "ended_by_attempt")
    )
    sequences = _SEQUENCE_STRUCT.iter_unpack(packed_sequences)
    return Member(
        name,
        state["host"],
        spool_id=spool_id,
        last_row=last_row,
        last_sequences={(attempt, rank): number for attempt, rank, number in sequences},
        start_times={(attempt, rank): time for (attempt, rank), time in state["start_times"]},
        incarnation=state["incarnation"],
        ranks_by_attempt=ranks,
        ended_by_attempt=ended,
        abandoned_attempt=state["abandoned_attempt"],
        has_unsaved_progress=False,
        has_unsaved_state=False,
    )
