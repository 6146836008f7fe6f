"""Member: one node of the run, as the head knows it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import isfinite
from operator import le
from struct import Struct

from sentinel.cluster.attempt_map import ATTEMPTS_KEPT
from sentinel.cluster.heartbeats import Told
from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, Sheet, records_of
from sentinel.transport.batch_codec import Parcel, Reader

FAR_SECONDS = 5.0
"""Clocks that differ by less are taken as they are: parcels are under way for a part of that."""
FUTURE_SECONDS = 60.0
FUTURE_BEATS = 1_000_000
"""How far ahead of its own node's clock, and of all that was heard, a record may be."""

_HEARD = Struct("<qqI")
"""Attempt, rank, and the number of its newest word."""

_NOBODY: frozenset[int] = frozenset()
_NEWEST = 1 << 64
"""What no number is beyond: of who was never heard, nothing counts as new."""

Sender = tuple[int, int]
"""An attempt as the node counts it, and a rank."""


@dataclass
class Member:
    """A node, by its `name`, and the correspondence with it.

    `row` is the last of its `spool` that was taken in, `heard` the newest word of each sender by
    number. `skew` is what is added to its clock to have ours, in seconds.
    """

    name: str
    host: str = ""
    slot: int = 0
    spool: str = ""
    row: int = 0
    heard: dict[Sender, int] = field(default_factory=dict)
    reader: Reader = field(default_factory=lambda: Reader(""))
    heard_at: float = 0.0
    """When a parcel last came, by the head's count of seconds that it listened."""
    skew: float = 0.0
    doubted: bool = True
    """Whether its clock, if it seems to be behind now, is no surprise."""
    beat: int = 0
    """The newest heard in this correspondence; 0 before any."""
    tick: Record | None = None
    ranks: dict[int, set[int]] = field(default_factory=dict)
    """Ranks by attempt of the run, of the newest two."""
    started: dict[Sender, float] = field(default_factory=dict)
    """When each sender began, by the node's clock."""
    life: int = 0
    """How often it came back without any memory of what it was, and counts from 0 again."""
    ended: dict[int, set[int]] = field(default_factory=dict)
    """Those of them, by attempt, of which the end is known."""
    given_up: int | None = None
    """The attempt of the run, if any, in which nobody waits for it any more."""
    changed: bool = True
    """How far it was heard is stored as it was before."""
    altered: bool = True
    """All else is."""

    @property
    def key(self) -> str:
        """What its own attempts are known by."""
        return f"{self.name}#{self.life}" if self.life else self.name

    @property
    def due(self) -> bool:
        """Whether there is anything to store."""
        return self.changed or self.altered

    def begin(self, slot: int, card: Mapping[str, str], run: str) -> None:
        """A new correspondence: with the same spool, the rows go on; with another, the words do."""
        self.slot, self.host, self.reader, self.beat = slot, card.get("host", ""), Reader(run), 0
        if card.get("spool", "") != self.spool:
            self.spool, self.row = card.get("spool", ""), 0
        self.altered = True

    def take(self, parcel: Parcel, now: float, tally: Tally) -> list[Entry]:
        """What is new in it, with times by our clock; attempts are still the node's own."""
        self.changed = True
        self._set_clock(parcel.clock, now)
        if parcel.last >= parcel.first:
            if parcel.first > self.row + 1:
                refused(tally, "gap", parcel.first - self.row - 1)
                self.beat = 0
            self.row = max(self.row, parcel.last)
        taken: list[Entry] = []
        for entry in parcel.entries:
            if isinstance(entry, Sheet) and self._is_new(entry, parcel.clock):
                taken.append(self._shifted(entry))
                continue
            fresh = (record for record in records_of([entry]) if self._is_taken(record, tally))
            taken += [self._timed(record, parcel.clock, tally) for record in fresh]
        return taken

    def note(self, attempt: int, rank: int, *, ended: bool = False) -> None:
        """Remember who has spoken, and who has ended, in that attempt of the run."""
        if rank == WHOLE_RUN:
            return
        known = self.ranks.get(attempt)
        if known is None:
            known = self.ranks[attempt] = set()
            for old in sorted(self.ranks)[:-2]:
                del self.ranks[old]
            self.ended = {each: ranks for each, ranks in self.ended.items() if each in self.ranks}
        if rank not in known:
            known.add(rank)
            self.altered = True
        if ended:
            self.ended.setdefault(attempt, set()).add(rank)
            self.altered = True

    def meet(self, attempt: int, ranks: Iterable[int]) -> None:
        """Remember that these have spoken in it."""
        if not self.ranks.get(attempt, _NOBODY).issuperset(ranks):
            for rank in ranks:
                self.note(attempt, rank)

    def unended(self, attempt: int) -> list[int]:
        """Its ranks in that attempt of the run that have not said how they ended."""
        return sorted(self.ranks.get(attempt, _NOBODY) - self.ended.get(attempt, _NOBODY))

    def goes_on(self, attempt: int) -> bool:
        """Whether there are such."""
        return len(self.ranks.get(attempt, _NOBODY)) > len(self.ended.get(attempt, _NOBODY))

    def told(self, age: float, *, lost: bool) -> Told | None:
        """Its part of the roll; None before its first TICK. `age` in seconds."""
        if self.tick is None:
            return None
        return Told(self.tick, self.host, self.ranks.get(self.tick.attempt, _NOBODY), age, lost)

    def _is_new(self, sheet: Sheet, clock: float) -> bool:
        """Whether nothing is wrong with any row of it; then they count as heard."""
        if max(sheet.times) > clock + FUTURE_SECONDS or self._is_far(sheet.beat):
            return False
        senders = [(sheet.attempt, rank) for rank in sheet.ranks]
        known = map(self.heard.get, senders, repeat(_NEWEST))
        if any(map(le, sheet.sequences, known)):
            return False
        self.heard.update(zip(senders, sheet.sequences, strict=True))
        self.beat = max(self.beat, sheet.beat)
        return True

    def _is_far(self, beat: int) -> bool:
        # A head that was away for days does not know how far they came.
        return self.beat > 0 and beat > self.beat + FUTURE_BEATS

    def _is_taken(self, record: Record, tally: Tally) -> bool:
        sender = record.attempt, record.rank
        if record.event is Event.START:
            self._meet(sender, record.time)
        if record.sequence:
            if record.sequence <= self.heard.get(sender, 0):
                refused(tally, "repeated")
                return False
            if sender not in self.heard:
                self._forget_before(record.attempt - ATTEMPTS_KEPT)
            self.heard[sender] = record.sequence
        if self._is_far(record.beat):
            refused(tally, "future")
            return False
        self.beat = max(self.beat, record.beat)
        return True

    def _meet(self, sender: Sender, began: float) -> None:
        """A rank begins: what began at another time is no repetition, whatever its numbers say."""
        known = self.started.get(sender, began)
        self.started[sender] = began
        self.altered = True
        if known != began:
            self.life += 1
            self.started = {sender: began}
            self.heard.clear()

    def _forget_before(self, attempt: int) -> None:
        """Nobody repeats what was said so long ago; a run that begins anew for ever stays small."""
        for book in (self.heard, self.started):
            for sender in [each for each in book if each[0] <= attempt]:
                del book[sender]

    def _timed(self, record: Record, clock: float, tally: Tally) -> Record:
        """The record with its time by our clock; one of the future is of now."""
        time = record.time
        if time > clock + FUTURE_SECONDS:
            refused(tally, "future")
            time = clock
        if abs(self.skew) > FAR_SECONDS:
            time += self.skew
        return record if time == record.time else replace(record, time=time)

    def _shifted(self, sheet: Sheet) -> Sheet:
        """The sheet with its times by our clock."""
        if abs(self.skew) <= FAR_SECONDS:
            return sheet
        return replace(sheet, times=tuple([time + self.skew for time in sheet.times]))

    def _set_clock(self, theirs: float, ours: float) -> None:
        """What a parcel was under way makes the difference too large, never too small.

        One alone that seems much too old was under way for long, since an agent was stopped; once
        the next says the same, their clock was set back.
        """
        found = ours - theirs
        behind = found > self.skew + FAR_SECONDS
        if behind and self.doubted:
            self.skew = found
        elif isfinite(found):
            self.skew = min(self.skew, found)
        self.doubted = behind and not self.doubted


def refused(tally: Tally, reason: str, count: int = 1) -> None:
    """Count what was not taken from another agent."""
    tally.add("sentinel_link_refused_total", reason, count)


def stored(connection: sqlite3.Connection) -> dict[str, Member]:
    """The nodes that were heard of before, by name."""
    rows = connection.execute("select name, spool, row, heard, told from node")
    return {name: _read(name, spool, row, heard, told) for name, spool, row, heard, told in rows}


def store(connection: sqlite3.Connection, member: Member) -> None:
    """Keep how far it was heard, and who has spoken and ended."""
    heard = b"".join([_HEARD.pack(*sender, number) for sender, number in member.heard.items()])
    if member.altered:
        connection.execute(
            "insert or replace into node(name, spool, row, heard, told) values(?, ?, ?, ?, ?)",
            (member.name, member.spool, member.row, heard, _told(member)),
        )
    else:
        # With each parcel, and there are many.
        connection.execute(
            "update node set row = ?, heard = ? where name = ?", (member.row, heard, member.name)
        )
    member.changed = member.altered = False


def _told(member: Member) -> str:
    return json.dumps(
        {
            "host": member.host,
            "started": [*member.started.items()],
            "life": member.life,
            "ranks": {attempt: sorted(ranks) for attempt, ranks in member.ranks.items()},
            "ended": {attempt: sorted(ranks) for attempt, ranks in member.ended.items()},
            "given_up": member.given_up,
        }
    )


def _read(name: str, spool: str, row: int, heard: bytes, text: str) -> Member:
    told = json.loads(text)
    numbers = _HEARD.iter_unpack(heard)
    return Member(
        name,
        told["host"],
        spool=spool,
        row=row,
        heard={(attempt, rank): number for attempt, rank, number in numbers},
        started={(attempt, rank): began for (attempt, rank), began in told["started"]},
        life=told["life"],
        ranks={int(attempt): set(ranks) for attempt, ranks in told["ranks"].items()},
        ended={int(attempt): set(ranks) for attempt, ranks in told["ended"].items()},
        given_up=told.get("given_up"),
        changed=False,
        altered=False,
    )
