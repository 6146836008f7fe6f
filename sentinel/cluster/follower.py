"""Post: a node's agent that judges nothing itself: it hands all its ranks say to the head.

What is read goes into the spool within the agent's transaction, and from there, parcel by parcel,
to the head; a row is forgotten once the head has it. How the ranks are is told with each parcel,
and is not kept: only the newest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from sentinel.cluster.client import ClusterClient
from sentinel.cluster.heartbeats import head_watch_heartbeat
from sentinel.cluster.listening_time import ListeningClock
from sentinel.cluster.node_hardware import hardware_values
from sentinel.cluster.spool import Spool
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import BatchEncoder
from sentinel.transport.ring_layout import NORMAL_OUTCOMES

TARGET_MESSAGE_BYTES = 1 << 20
"""Of one parcel, about."""
HEARTBEAT_INTERVAL_SECONDS = 1.0
"""How often the head hears how the ranks are, if nothing else is to be said."""
HEAD_LOST_AFTER_SECONDS = 15.0
"""Without an answer, after which the head is held to be lost."""
FINAL_DELIVERY_TIMEOUT_SECONDS = 30.0
"""How long an agent whose ranks have ended keeps on trying to reach a head that is not there, from
their last word on."""


class Follower:
    """Hands records of `run` over. `clock` gives seconds since the epoch."""

    def __init__(
        self, run: str, spool: Spool, client: ClusterClient, clock: Callable[[], float] = time.time
    ) -> None:
        self.run, self.spool, self.client, self.clock = run, spool, client, clock
        self.confirmed_row = self._deleted_row = 0
        """The last row that the head has."""
        self.listening_clock = ListeningClock(clock)
        self._unspooled: list[Record] = []
        self._batch_encoder = BatchEncoder()
        self._session = self._acked_message = 0
        self._acked_at = self._sent_at = self._last_record_at = 0.0
        self._is_deputy = False
        self._heartbeat: Record | None = None
        self._hardware_values: dict[str, float] = {}
        self._running_ranks: set[tuple[int, int]] = set()
        self._newest_attempt = self._newest_failed_attempt = -1
        """The newest attempt, and the newest in which a rank of ours fell."""

    def forward(self, local_records: Iterable[Record]) -> list[Record]:
        """Take what was read. What is returned is this agent's own to judge: that nobody judges."""
        self.listening_clock.advance()
        self.client.check_timeout()
        self._read_ack()
        own: list[Record] = []
        for record in local_records:
            if record.event is Event.HEARTBEAT:
                self._heartbeat = record
                self._hardware_values |= hardware_values(record.values)
                own += self._watch_head(record)
            else:
                self._unspooled.append(record)
                self._last_record_at = self.listening_clock.seconds
                self._track_rank(record)
        return own

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._unspooled) or self.confirmed_row > self._deleted_row

    def persist(self) -> None:
        """Store what is new, and forget what the head has, within the caller's transaction."""
        if self._unspooled:
            self.spool.append(self._unspooled)
            self._unspooled = []
        if self.confirmed_row > self._deleted_row:
            self.spool.delete_through(self.confirmed_row)
            self._deleted_row = self.confirmed_row

    def after_commit(self) -> None:
        """What was read is safe: hand over what comes next, if the last was answered."""
        now = self.listening_clock.seconds
        waits = self._batch_encoder.message_count > self._acked_message
        if not self.client.is_connected or not self._session or waits:
            return
        if not self.spool.size_bytes and now - self._sent_at < HEARTBEAT_INTERVAL_SECONDS:
            return
        first, last, entries = self.spool.read_after(
            self.confirmed_row, self.run, TARGET_MESSAGE_BYTES
        )
        if self._heartbeat is not None:
            told = {**self._heartbeat.values, **self._hardware_values}
            entries.append(replace(self._heartbeat, values=told))
            self._hardware_values = {}
        self._sent_at = now
        parcel = self._batch_encoder.encode(entries, first, last, self.clock())
        self.client.send(self._session, parcel)

    @property
    def finished(self) -> bool:
        """Whether all that was ever said is with the head, or nobody is there to be told."""
        if not self._unspooled and not self.spool.size_bytes:
            return True
        tried = self.listening_clock.seconds - max(self._acked_at, self._last_record_at)
        return tried >= FINAL_DELIVERY_TIMEOUT_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Seconds since the head last answered, or since we began."""
        return self.listening_clock.seconds - self._acked_at

    def status(self) -> dict[str, Any]:
        """In plain words: head, linked, trouble, spooled_bytes, silent_seconds."""
        return {
            "head": self.client.head_address,
            "linked": self.client.is_connected,
            "error": self.client.error,
            "spooled_bytes": self.spool.size_bytes,
            "silent_seconds": self.silent_seconds,
        }

    def _read_ack(self) -> None:
        answer = self.client.last_ack
        if answer is None or (answer.session, answer.message_number) == (
            self._session,
            self._acked_message,
        ):
            return
        if answer.session != self._session:
            self._session, self._batch_encoder = answer.session, BatchEncoder()
        self._acked_message, self.confirmed_row = answer.message_number, answer.last_row
        self._acked_at, self._is_deputy = self.listening_clock.seconds, answer.is_deputy

    def _track_rank(self, record: Record) -> None:
        who = record.attempt, record.rank
        self._newest_attempt = max(self._newest_attempt, record.attempt)
        if record.event is Event.STOP:
            self._running_ranks.discard(who)
            if record.attributes.get("outcome", "finished") not in NORMAL_OUTCOMES:
                self._newest_failed_attempt = max(self._newest_failed_attempt, record.attempt)
        elif record.rank != WHOLE_RUN:
            self._running_ranks = {
                each for each in self._running_ranks if each[0] == record.attempt
            } | {who}

    def _watch_head(self, heartbeat: Record) -> Iterator[Record]:
        """What the deputy sees of the head, as a TICK of its own; other nodes leave it to that."""
        if not self._is_deputy:
            return
        # In DDP our ranks fall at once when the head's node dies, and nobody else tells of that.
        untold = (
            self.spool.size_bytes > 0 and self._newest_attempt == self._newest_failed_attempt >= 0
        )
        lost = self.silent_seconds >= HEAD_LOST_AFTER_SECONDS and (
            bool(self._running_ranks) or untold
        )
        yield head_watch_heartbeat(
            heartbeat,
            self.client.head_address if lost else "",
            self.silent_seconds if lost else 0.0,
        )
