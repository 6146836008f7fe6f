"""Followed: a log that somebody else writes, read as it grows, in the place of a run's rings.

What it holds already is `behind` us: history, which wakes nobody by itself. Silence is judged by
the log's own pace, and only where it says itself that it is not over yet: a log tells of no death.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.format_detection import recognised
from sentinel.readers.log_reader import Reading
from sentinel.readers.rows import LIMIT_KEYS, YEAR_2001
from sentinel.transport.ring import Cursor
from sentinel.transport.ring_position import Position

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
AT_ONCE = 2000
"""Records of one poll, about: what they lead to is stored in one piece."""

FLUSH_SECONDS = 120.0
"""TensorBoard's writers hold numbers back for so long: no log is taken to be quicker at first."""

ARRIVALS, ENOUGH = 50, 10
"""Arrivals by whose distances the log's pace is known, and how many tell it."""

LAST_WORD = "train_runtime"
"""A key that transformers logs once, at the very end."""

BEHIND = "behind"


@dataclass
class FollowedLog:
    """Polls the log at `path`, which need not be there yet, as the run `run`.

    `known` are the stored positions. `clock` gives seconds since the epoch. `max_steps` is the last
    step, where it is known; else the log may say.
    """

    run: str
    path: Path
    tally: Tally
    known: Mapping[str, Position] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    max_steps: int = 0
    machine: Callable[[], Mapping[str, float]] = dict
    behind: bool = True
    ended: bool = False
    expected: bool = True
    attempt: int = -1
    first: None = None
    """A log is of the whole run: there is no rank, and no other node."""
    mark: int = 0
    told: Record | None = None
    ticked: float = 0.0
    moved: float = 0.0
    """When a record last came, by our clock."""

    def __post_init__(self) -> None:
        position = self.known.get(str(self.path))
        self.base = self.skip = 0
        self.reading: Reading | None = None
        self.coming: Iterator[Record | None] = iter(())
        self.held: Record | None = None
        self.gaps: deque[float] = deque(maxlen=ARRIVALS)
        self.complained, self.remark = False, ""
        if position is not None:
            self.mark, self.attempt = position.cursor.position, position.cursor.sequence
            self.behind = position.outcome == BEHIND
            self.max_steps = self.max_steps or position.names.get("max_steps", 0)

    def poll(self) -> list[Record]:
        """What came since the last call, as of the whole run; never raises on the log's account."""
        now = self.clock()
        self.moved = self.moved or now
        try:
            records = [self._placed(record, now) for record in self._news()]
        except (OSError, ValueError) as error:
            self._trouble(error)
            records = []
        if records:
            self._arrived(now)
        if self._over(records) and not self.ended:
            self.ended = True
            last = records[-1]
            ending = {"outcome": "finished"}
            records.append(replace(last, event=Event.STOP, values={}, facts=ending, time=now))
        if not self.behind and (now - self.ticked >= TICK_SECONDS or now < self.ticked):
            self.ticked = now
            if self.told is not None:
                records.append(self._tick(self.told, now))
        return records

    def remarked(self) -> str:
        """What a person should know of how the log is read; each remark once."""
        remark = self.reading.remark if self.reading is not None else ""
        told, self.remark = self.remark, remark or self.remark
        return remark if remark != told else ""

    def positions(self) -> dict[str, Position]:
        """What must be stored to go on from here."""
        names = {"max_steps": self.max_steps}
        cursor = Cursor(self.mark, max(0, self.attempt))
        return {str(self.path): Position(cursor, names, BEHIND if self.behind else "")}

    def pids(self) -> dict[int, int]:
        """No processes: whose log it is, is not known."""
        return {}

    def conclude(self) -> bool:
        """Whether anything was held back until the end: nothing is."""
        return False

    def discard(self) -> None:
        """The log is not ours to remove."""

    def _news(self) -> Iterator[Record]:
        """Records behind `mark`, some at a time, never a part of those that share a mark."""
        reading = self.reading or self._open()
        count = 0
        while True:
            record, self.held = self.held or next(self.coming, None), None
            if record is None and reading.mark + reading.held < self.skip:
                # It is shorter than it was: begun anew while nobody looked.
                self.skip, self.base, self.reading = 0, self.attempt + 1, None
                self.mark = 0
                return
            if record is None:
                self.behind = False
                # What is held back of an old log was told before it was read again.
                self.skip = 0 if reading.mark >= self.skip else self.skip
                return
            if reading.mark <= self.skip:
                self.base = self.attempt - record.attempt
                continue
            if count >= AT_ONCE and reading.mark > self.mark:
                self.held = record
                return
            self.skip, count = 0, count + 1
            self.mark, self.attempt = reading.mark, self.base + record.attempt
            yield replace(record, run=self.run, attempt=self.attempt)

    def _open(self) -> Reading:
        self.reading = replace(recognised(self.path), clock=self.clock)
        self.coming = self.reading.follow()
        self.complained = False
        # What was told before is read again, since it says what the names mean.
        self.skip = self.mark
        return self.reading

    def _trouble(self, error: Exception) -> None:
        """Begin again at the next poll, from where we are."""
        self.reading, self.coming, self.held = None, iter(()), None
        if isinstance(error, FileNotFoundError):
            # It may be still to come.
            return
        if not self.complained:
            log.warning("The log %s cannot be read for now: %s", self.path, error)
        self.complained = True

    def _placed(self, record: Record, now: float) -> Record:
        time = record.time if YEAR_2001 < record.time <= now else now
        self.told = replace(record, time=time, rank=WHOLE_RUN)
        for key in LIMIT_KEYS:
            limit = record.values.get(key, 0.0)
            if isfinite(limit) and limit > 0:
                self.max_steps = int(limit)
        if record.event is Event.START:
            self.ended = False
        return self.told

    def _arrived(self, now: float) -> None:
        if not self.behind:
            self.gaps.append(now - self.moved)
        self.moved = now

    def _over(self, records: list[Record]) -> bool:
        if self.behind or not records:
            return False
        last = records[-1]
        return LAST_WORD in last.values or 0 < self.max_steps <= last.step

    def _tick(self, last: Record, now: float) -> Record:
        idle = max(0.0, now - self.moved)
        values = {"idle_seconds": idle}
        facts = {"state": "finished" if self.ended else "running"}
        if self.max_steps and not self.ended:
            # There is more to come, so its absence means something.
            values |= {"ranks_running": 1.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
            pace = max(self.gaps) if len(self.gaps) >= ENOUGH else FLUSH_SECONDS
            facts |= {"everyone": "yes", "behind": "0", "behind_step": str(last.step)}
            facts |= {"pace": f"{pace:.1f}"}
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=last.step,
            time=now,
            event=Event.TICK,
            values=values,
            facts=facts,
            attempt=last.attempt,
            beat=last.beat,
        )
