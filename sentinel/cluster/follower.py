"""A follower: the agent of a node that sends its records to the head and evaluates none of them.

Records go to the spool within the agent's transaction, and from there to the head, one message at a
time. A row is deleted once the head has acknowledged it. Each message also carries the newest
heartbeat, which is not spooled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from sentinel.cluster.client import ClusterClient
from sentinel.cluster.heartbeats import UNSENT_KEY, head_watch_heartbeat
from sentinel.cluster.listening_clock import ListeningClock
from sentinel.cluster.node_hardware import hardware_values
from sentinel.cluster.spool import Spool
from sentinel.model.json_safe import parse_object
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import BatchEncoder
from sentinel.transport.ring_layout import NORMAL_OUTCOMES

TARGET_MESSAGE_BYTES = 256 << 10
"""Approximate size of a full message, which the head processes in one turn."""
HEARTBEAT_INTERVAL_SECONDS = 1.0
"""Interval of heartbeats to the head while there are no records."""
HEAD_LOST_AFTER_SECONDS = 15.0
"""Silence after which the head is considered lost."""
FLOODED_HEAD_LOST_AFTER_SECONDS = 60.0
"""The same for a head whose store is flooded, which has reported that: nodes may not reach it."""
HEAD_RETURN_SECONDS = 10.0
"""Time for a head whose port answers again to acknowledge a message, before its loss is sent."""
FINAL_DELIVERY_TIMEOUT_SECONDS = 30.0
"""How long an agent whose ranks have ended retries to reach a missing head, from their last record
on."""


class Follower:
    """Sends the records of `run` to the head. `clock` returns seconds since the epoch."""

    def __init__(
        self, run: str, spool: Spool, client: ClusterClient, clock: Callable[[], float] = time.time
    ) -> None:
        self.run, self.spool, self.client, self.clock = run, spool, client, clock
        self.confirmed_row = self._deleted_row = 0
        """The last row that the head has acknowledged."""
        self.listening_clock = ListeningClock(clock)
        self._unspooled: list[Record] = []
        self._batch_encoder = BatchEncoder()
        self._session = self._acked_message = 0
        self._acked_at = self._sent_at = self._last_record_at = 0.0
        self._is_deputy = False
        self.report: dict[str, Any] = {}
        """The newest of the head on the run; empty before the first."""
        self._reachable_since: float | None = None
        """When the port of the silent head was found open, on the monotonic clock."""
        self._heartbeat: Record | None = None
        self._hardware_values: dict[str, float] = {}
        self._running_ranks: set[tuple[int, int]] = set()
        self._newest_attempt = self._newest_failed_attempt = -1
        """The newest attempt, and the newest in which a rank of this node failed."""

    def forward(self, local_records: Iterable[Record]) -> list[Record]:
        """Queue these records for the head.

        Returns what this agent evaluates itself: heartbeats on the head, if it is the deputy.
        """
        self.listening_clock.advance()
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
        """Spool new records, and delete acknowledged rows, within the caller's transaction."""
        if self._unspooled:
            self.spool.append(self._unspooled)
            self._unspooled = []
        if self.confirmed_row > self._deleted_row:
            self.spool.delete_through(self.confirmed_row)
            self._deleted_row = self.confirmed_row

    def after_commit(self) -> None:
        """Send the next rows, if the last message is acknowledged. The transaction is committed."""
        now = self.listening_clock.seconds
        is_awaiting_ack = self._batch_encoder.message_count > self._acked_message
        if not self.client.is_connected or not self._session or is_awaiting_ack:
            return
        if not self.spool.size_bytes and now - self._sent_at < HEARTBEAT_INTERVAL_SECONDS:
            return
        first, last, entries = self.spool.read_after(
            self.confirmed_row, self.run, TARGET_MESSAGE_BYTES
        )
        if self._heartbeat is not None:
            values = {**self._heartbeat.values, **self._hardware_values}
            unsent = {UNSENT_KEY: "yes"} if self.spool.last_row > max(last, first - 1) else {}
            attributes = {**self._heartbeat.attributes, **unsent}
            entries.append(replace(self._heartbeat, values=values, attributes=attributes))
            self._hardware_values = {}
        self._sent_at = now
        message = self._batch_encoder.encode(entries, first, last, self.clock())
        self.client.send(self._session, message)

    @property
    def finished(self) -> bool:
        """Whether the head has every record, or has been unreachable for too long."""
        if not self._unspooled and not self.spool.size_bytes:
            return True
        tried_seconds = self.listening_clock.seconds - max(self._acked_at, self._last_record_at)
        return tried_seconds >= FINAL_DELIVERY_TIMEOUT_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last acknowledgement, or since the start of this agent."""
        return self.listening_clock.seconds - self._acked_at

    @property
    def is_head_back(self) -> bool:
        """Whether the head has acknowledged a message lately."""
        return self.client.is_connected and not self.is_head_lost

    @property
    def is_head_lost(self) -> bool:
        """Whether the head has been silent for too long."""
        return self.silent_seconds >= (
            FLOODED_HEAD_LOST_AFTER_SECONDS
            if self.client.is_head_flooded
            else HEAD_LOST_AFTER_SECONDS
        )

    def confirms_loss(self) -> bool:
        """Whether the head is still gone, asked when its loss is about to be sent.

        Takes a second at most, too long for the main loop. If the link of this node was cut, the
        receiver and the head are reachable again at the same time.
        """
        if not self.is_head_lost:
            return False
        if not self.client.is_head_reachable():
            self._reachable_since = None
            return True
        now = time.monotonic()
        if self._reachable_since is None:
            self._reachable_since = now
        return now - self._reachable_since >= HEAD_RETURN_SECONDS

    def status(self) -> dict[str, Any]:
        """The connection as JSON: head, connected, error, spooled_bytes, silent_seconds, report."""
        return {
            "head": self.client.head_address,
            "connected": self.client.is_connected,
            "error": self.client.error,
            "spooled_bytes": self.spool.size_bytes,
            "silent_seconds": self.silent_seconds,
            "report": self.report,
        }

    def _read_ack(self) -> None:
        ack = self.client.last_ack
        if ack is None or (ack.session, ack.message_number) == (self._session, self._acked_message):
            return
        if ack.session != self._session:
            self._session, self._batch_encoder = ack.session, BatchEncoder()
        self._acked_message, self.confirmed_row = ack.message_number, ack.last_row
        self._acked_at, self._is_deputy = self.listening_clock.seconds, ack.is_deputy
        self.report = parse_object(ack.report.decode(errors="replace"))

    def _track_rank(self, record: Record) -> None:
        sender = record.attempt, record.rank
        self._newest_attempt = max(self._newest_attempt, record.attempt)
        if record.event is Event.STOP:
            self._running_ranks.discard(sender)
            if record.attributes.get("outcome", "finished") not in NORMAL_OUTCOMES:
                self._newest_failed_attempt = max(self._newest_failed_attempt, record.attempt)
        elif record.rank != WHOLE_RUN:
            self._running_ranks = {
                each for each in self._running_ranks if each[0] == record.attempt
            } | {sender}

    def _watch_head(self, heartbeat: Record) -> Iterator[Record]:
        """A heartbeat on the state of the head; only from the deputy."""
        if not self._is_deputy:
            return
        # With DDP the local ranks fail at once when the head's node dies. If that failure is still
        # in the spool, no other agent reports it.
        has_unreported_failure = (
            self.spool.size_bytes > 0 and self._newest_attempt == self._newest_failed_attempt >= 0
        )
        is_lost = self.is_head_lost and (bool(self._running_ranks) or has_unreported_failure)
        yield head_watch_heartbeat(
            heartbeat,
            self.client.head_address if is_lost else "",
            self.silent_seconds if is_lost else 0.0,
        )
