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

from sentinel.cluster.client import Link
from sentinel.cluster.heartbeats import headless
from sentinel.cluster.listening_time import Awake
from sentinel.cluster.node_hardware import measured
from sentinel.cluster.spool import Spool
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import Writer
from sentinel.transport.ring_layout import WELL

PARCEL_BYTES = 1 << 20
"""Of one parcel, about."""
PULSE_SECONDS = 1.0
"""How often the head hears how the ranks are, if nothing else is to be said."""
HEAD_LOST_SECONDS = 15.0
"""Without an answer, after which the head is held to be lost."""
LAST_WORDS_SECONDS = 30.0
"""How long an agent whose ranks have ended keeps on trying to reach a head that is not there, from
their last word on."""


class Post:
    """Hands records of `run` over. `clock` gives seconds since the epoch."""

    def __init__(
        self, run: str, spool: Spool, link: Link, clock: Callable[[], float] = time.time
    ) -> None:
        self.run, self.spool, self.link, self.clock = run, spool, link, clock
        self.row = self._forgotten = 0
        """The last row that the head has."""
        self.awake = Awake(clock)
        self._new: list[Record] = []
        self._writer = Writer()
        self._session = self._answered = 0
        self._answered_at = self._told_at = self._heard_at = 0.0
        self._deputy = False
        self._tick: Record | None = None
        self._machine: dict[str, float] = {}
        self._running: set[tuple[int, int]] = set()
        self._attempt = self._fallen = -1
        """The newest attempt, and the newest in which a rank of ours fell."""

    def turn(self, local: Iterable[Record]) -> list[Record]:
        """Take what was read. What is returned is this agent's own to judge: that nobody judges."""
        self.awake.look()
        self.link.look()
        self._take_up()
        own: list[Record] = []
        for record in local:
            if record.event is Event.TICK:
                self._tick = record
                self._machine |= measured(record.values)
                own += self._watch(record)
            else:
                self._new.append(record)
                self._heard_at = self.awake.seconds
                self._note(record)
        return own

    @property
    def due(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._new) or self.row > self._forgotten

    def keep(self) -> None:
        """Store what is new, and forget what the head has, within the caller's transaction."""
        if self._new:
            self.spool.put(self._new)
            self._new = []
        if self.row > self._forgotten:
            self.spool.forget(self.row)
            self._forgotten = self.row

    def kept(self) -> None:
        """What was read is safe: hand over what comes next, if the last was answered."""
        now = self.awake.seconds
        waits = self._writer.written > self._answered
        if not self.link.linked or not self._session or waits:
            return
        if not self.spool.bytes and now - self._told_at < PULSE_SECONDS:
            return
        first, last, entries = self.spool.after(self.row, self.run, PARCEL_BYTES)
        if self._tick is not None:
            told = {**self._tick.values, **self._machine}
            entries.append(replace(self._tick, values=told))
            self._machine = {}
        self._told_at = now
        parcel = self._writer.write(entries, first, last, self.clock())
        self.link.send(self._session, parcel)

    @property
    def over(self) -> bool:
        """Whether all that was ever said is with the head, or nobody is there to be told."""
        if not self._new and not self.spool.bytes:
            return True
        tried = self.awake.seconds - max(self._answered_at, self._heard_at)
        return tried >= LAST_WORDS_SECONDS

    @property
    def silent(self) -> float:
        """Seconds since the head last answered, or since we began."""
        return self.awake.seconds - self._answered_at

    def state(self) -> dict[str, Any]:
        """In plain words: head, linked, trouble, spooled_bytes, silent_seconds."""
        return {
            "head": self.link.head,
            "linked": self.link.linked,
            "trouble": self.link.trouble,
            "spooled_bytes": self.spool.bytes,
            "silent_seconds": self.silent,
        }

    def _take_up(self) -> None:
        answer = self.link.answer
        if answer is None or (answer.session, answer.number) == (self._session, self._answered):
            return
        if answer.session != self._session:
            self._session, self._writer = answer.session, Writer()
        self._answered, self.row = answer.number, answer.row
        self._answered_at, self._deputy = self.awake.seconds, answer.deputy

    def _note(self, record: Record) -> None:
        who = record.attempt, record.rank
        self._attempt = max(self._attempt, record.attempt)
        if record.event is Event.STOP:
            self._running.discard(who)
            if record.facts.get("outcome", "finished") not in WELL:
                self._fallen = max(self._fallen, record.attempt)
        elif record.rank != WHOLE_RUN:
            self._running = {each for each in self._running if each[0] == record.attempt} | {who}

    def _watch(self, tick: Record) -> Iterator[Record]:
        """What the deputy sees of the head, as a TICK of its own; other nodes leave it to that."""
        if not self._deputy:
            return
        # In DDP our ranks fall at once when the head's node dies, and nobody else tells of that.
        untold = self.spool.bytes > 0 and self._attempt == self._fallen >= 0
        lost = self.silent >= HEAD_LOST_SECONDS and (bool(self._running) or untold)
        yield headless(tick, self.link.head if lost else "", self.silent if lost else 0.0)
