"""Live: the rings of a run's ranks, polled; and who of them is still alive.

`poll` gives the records that came in since the last call, and a TICK twice a second that tells the
time and the state of the ranks. A rank whose process is gone without a word is given the STOP it
could not write. Nothing here writes to a ring or touches a trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from sentinel.live.elastic_restart import Regrouping
from sentinel.live.launcher_status import Launched
from sentinel.live.liveness import Rank, firsthand, roll_call
from sentinel.model.counters import Tally
from sentinel.model.record import Event, Record
from sentinel.transport.command_page import tidy
from sentinel.transport.identity import Identity
from sentinel.transport.paths import remember, rings
from sentinel.transport.process import Process
from sentinel.transport.record_codec import PayloadError, Unpacker
from sentinel.transport.ring import Cursor, RingError, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, ERRORS_BEFORE_OFF
from sentinel.transport.ring_position import Position

TICK_SECONDS = 0.5
DOUBT_SECONDS = 5.0
SCAN_SECONDS = 0.25
"""How often new rings are looked for, and whether the processes of the known ones still run."""


@dataclass
class LiveSource:
    """Reads every ring of one run on this node.

    `known` are the stored positions by ring path. `clock` gives seconds since the epoch, `machine`
    what is new of the machine, by signal.
    """

    run: str
    tally: Tally
    known: Mapping[str, Position] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    machine: Callable[[], Mapping[str, float]] = dict
    ranks: dict[Path, Rank] = field(default_factory=dict)
    ticked: float = 0.0
    scanned: float = 0.0
    polled: float = 0.0
    unreadable: dict[Path, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.launched = Launched(self.run)
        self.regrouping = Regrouping()

    def poll(self) -> list[Record]:
        """Everything new since the last call, in the order of each ring; never waits."""
        now = self.clock()
        self._set_back(now)
        looks = now - self.scanned >= SCAN_SECONDS or now < self.scanned
        if looks:
            self.scanned = now
            self._scan(now)
            self.launched.look()
        records: list[Record] = []
        for rank in self.ranks.values():
            if not rank.ended:
                records.extend(self._drain(rank, now, looks=looks))
        ending = [*self._launcher(now)]
        records.extend(ending)
        # Told with what it means: an agent that lingers for no time leaves right after it.
        fallen = bool(ending) or any(r.event is Event.STOP for r in records)
        if fallen or now - self.ticked >= TICK_SECONDS or now < self.ticked:
            self.ticked = now
            records.extend(self._ticks(now))
        return records

    def positions(self) -> dict[str, Position]:
        """What must be stored, by ring path."""
        return {
            str(path): Position(rank.cursor, rank.unpacker.names, rank.outcome, rank.ended_at)
            for path, rank in self.ranks.items()
        }

    def pids(self) -> dict[int, int]:
        """The processes of the newest attempt that still run, by rank; for any thread."""
        ranks = firsthand(list(self.ranks.values()))
        headers = [rank.header for rank in ranks if not rank.ended]
        newest = max((header.identity.attempt for header in headers), default=-1)
        return {h.identity.rank: h.process.pid for h in headers if h.identity.attempt == newest}

    @property
    def attempt(self) -> int:
        """The newest attempt seen; -1 before any rank was."""
        return max((rank.header.identity.attempt for rank in self.ranks.values()), default=-1)

    @property
    def first(self) -> Identity | None:
        """The lowest rank on this node, of the newest attempt; None before any rank was seen."""
        current = [rank.header.identity for rank in self._current()]
        return min(current, key=lambda who: who.local_rank, default=None)

    @property
    def ended(self) -> bool:
        """Whether every rank of the newest attempt has ended, and the command that began them."""
        if self.launched.running or self.regrouping.waiting:
            return False
        current = self._current()
        alone = self.launched.alone([*self.ranks.values()])
        return alone or (bool(current) and all(rank.ended for rank in current))

    @property
    def expected(self) -> bool:
        """Whether there are ranks, or a command that may still begin some."""
        return bool(self.ranks) or self.launched.running

    def conclude(self) -> bool:
        """Have the next poll tell all, as the last that is made; whether anything was held back."""
        self.regrouping.final, self.ticked = True, 0.0
        return self.regrouping.waiting

    def discard(self) -> None:
        """Remove the rings, once nobody will write to or read from them again."""
        for path, rank in self.ranks.items():
            rank.reader.close()
            remember(self.run, path)
            path.unlink(missing_ok=True)
        for directory in {path.parent for path in self.ranks}:
            tidy(directory)

    def _set_back(self, now: float) -> None:
        """What was seen so long before a clock was set back, was seen so long before now."""
        by = max(0.0, self.polled - now)
        self.polled = now
        for rank in self.ranks.values() if by else ():
            rank.moved -= by
            rank.ended_at -= by if rank.ended else 0.0

    def _current(self) -> list[Rank]:
        newest = self.attempt
        return [r for r in self.ranks.values() if r.header.identity.attempt == newest]

    def _scan(self, now: float) -> None:
        for path in rings(self.run):
            if path in self.ranks:
                continue
            try:
                self.ranks[path] = self._open(path, now)
                self.regrouping.meet(self.ranks[path])
            except RingError:
                self._doubt(path, now)

    def _doubt(self, path: Path, now: float) -> None:
        """A ring still being made is whole a moment later; one that stays unreadable is counted."""
        since = self.unreadable.setdefault(path, now)
        if since + DOUBT_SECONDS <= now:
            self.tally.add("sentinel_dropped_records_total", "ring_refused")
            self.unreadable[path] = inf

    def _open(self, path: Path, now: float) -> Rank:
        reader = RingReader(path)
        header = reader.header()
        known = self.known.get(str(path))
        unpacker = Unpacker(
            self.run,
            header.identity.attempt,
            header.identity.rank,
            dict(known.names) if known else {},
        )
        moved = min(now, header.last_time)
        if known is None:
            return Rank(reader, unpacker, Cursor(0, 0), header, moved)
        return Rank(reader, unpacker, known.cursor, header, moved, known.outcome, known.ended_at)

    def _drain(self, rank: Rank, now: float, *, looks: bool) -> Iterator[Record]:
        # Asked before reading: whatever a dead process wrote is then surely seen.
        alive = not looks or rank.header.process.alive()
        header = rank.reader.header()
        # A hook that is off takes no steps that we could see, which is no standstill.
        if header.last_beat != rank.header.last_beat or header.errors >= ERRORS_BEFORE_OFF:
            rank.moved = now
        rank.header = header
        batch = rank.reader.read(rank.cursor)
        rank.cursor = batch.cursor
        for reason, count in (("overrun", batch.lost), ("corrupt", batch.corrupt)):
            if count:
                self.tally.add("sentinel_dropped_records_total", reason, count)
        for payload, sequence in zip(batch.payloads, batch.sequences, strict=True):
            record = self._unpack(rank, payload, sequence)
            if record is not None:
                yield record
        self._account(rank)
        if not rank.ended and not (alive and header.outcome == "running"):
            # A hook that had to switch itself off still says how it ended, in the header.
            rank.outcome = "died" if header.outcome == "running" else header.outcome
            rank.ended_at = now
            yield self._obituary(rank, now)

    def _unpack(self, rank: Rank, payload: bytes, sequence: int) -> Record | None:
        try:
            record = rank.unpacker.unpack(payload, sequence)
        except PayloadError:
            self.tally.add("sentinel_dropped_records_total", "payload")
            return None
        if record is not None and record.event is Event.START:
            return _told_by(rank.header.process, record)
        if record is not None and record.event is Event.STOP:
            rank.outcome = record.facts.get("outcome", "finished")
            rank.ended_at, rank.stop = self.clock(), record.facts
        return record

    def _obituary(self, rank: Rank, now: float) -> Record:
        header = rank.header
        return Record(
            run=self.run,
            rank=header.identity.rank,
            step=header.last_step,
            time=now,
            event=Event.STOP,
            facts={"outcome": rank.outcome},
            attempt=header.identity.attempt,
            beat=header.last_beat,
        )

    def _account(self, rank: Rank) -> None:
        header, who = rank.header, str(rank.header.identity.rank)
        self.tally.set("sentinel_hook_overhead_seconds_total", who, header.overhead_ns / 1e9)
        self.tally.set("sentinel_hook_errors_total", who, header.errors)
        for reason, old, new in zip(DROP_REASONS, rank.reported, header.drops, strict=True):
            if new > old:
                self.tally.add("sentinel_dropped_records_total", reason, new - old)
        rank.reported = header.drops

    def _launcher(self, now: float) -> Iterator[Record]:
        ranks = [*self.ranks.values()]
        attempt = self.attempt + self.launched.alone(ranks)
        yield from self.launched.ending(ranks, attempt, now)

    def _ticks(self, now: float) -> Iterator[Record]:
        if self.launched.alone([*self.ranks.values()]):
            tick = self.launched.alone_tick(self.attempt + 1, now)
            if tick is not None:
                yield tick
        elif self.ranks:
            yield self.tick(now)

    def tick(self, now: float) -> Record:
        """What the source itself has to say: how the ranks are, and, when news, the machine.

        The fact `final` is there if this is the last that is said.
        """
        current = self._current()
        told = self.launched.told_of(roll_call(self.run, current, now), current)
        told = self.regrouping.told_of(told, current, now)
        last = {"final": "yes"} if self.regrouping.final else {}
        values, facts = {**told.values, **self.machine()}, {**told.facts, **last}
        return replace(told, values=values, facts=facts)


def _told_by(process: Process, start: Record) -> Record:
    """A START, with the fact `gathered` where another rank's process wrote it down."""
    own = start.facts.get("pid", str(process.pid)) == str(process.pid)
    return start if own else replace(start, facts={**start.facts, "gathered": "yes"})
