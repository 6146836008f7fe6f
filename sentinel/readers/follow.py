"""Followed: a log that somebody else writes, read as it grows, in the place of a run's rings.

What it holds already is `straggler_ranks` us: history, which wakes nobody by itself. Silence is judged by
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

from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import MAX_STEPS_KEYS, YEAR_2001
from sentinel.transport.ring import ReadPosition, RingCursor, RingReader

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 0.5
MAX_RECORDS_PER_POLL = 2000
"""Records of one poll, about: what they lead to is stored in one piece."""

INITIAL_PACE_SECONDS = 120.0
"""TensorBoard's writers hold numbers back for so long: no log is taken to be quicker at first."""

MAX_ARRIVAL_GAPS, MIN_ARRIVAL_GAPS = 50, 10
"""Arrivals by whose distances the log's pace is known, and how many tell it."""

END_OF_RUN_KEY = "train_runtime"
"""A key that transformers logs once, at the very end."""

CATCHING_UP = "behind"


@dataclass
class LogFollower:
    """Polls the log at `path`, which need not be there yet, as the run `run`.

    `known` are the stored positions. `clock` gives seconds since the epoch. `max_steps` is the last
    step, where it is known; else the log may say.
    """

    run: str
    path: Path
    counters: Counters
    stored_positions: Mapping[str, ReadPosition] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    max_steps: int = 0
    new_machine_values: Callable[[], Mapping[str, float]] = dict
    is_catching_up: bool = True
    ended: bool = False
    ranks_expected: bool = True
    attempt: int = -1
    first_identity: None = None
    """A log is of the whole run: there is no rank, and no other node."""
    position: int = 0
    last_record: Record | None = None
    last_heartbeat_at: float = 0.0
    last_arrival_at: float = 0.0
    """When a record last came, by our clock."""

    def __post_init__(self) -> None:
        position = self.stored_positions.get(str(self.path))
        self.base_attempt = self.replay_until = 0
        self.reader: LogReader | None = None
        self.unread_records: Iterator[Record | None] = iter(())
        self.held_record: Record | None = None
        self.arrival_gaps: deque[float] = deque(maxlen=MAX_ARRIVAL_GAPS)
        self.has_warned, self.last_notice = False, ""
        if position is not None:
            self.position, self.attempt = position.cursor.position, position.cursor.sequence
            self.is_catching_up = position.outcome == CATCHING_UP
            self.max_steps = self.max_steps or position.reader_state.get("max_steps", 0)

    def poll(self) -> list[Record]:
        """What came since the last call, as of the whole run; never raises on the log's account."""
        now = self.clock()
        self.last_arrival_at = self.last_arrival_at or now
        try:
            records = [self._normalize(record, now) for record in self._new_records()]
        except (OSError, ValueError) as error:
            self._reset_after_error(error)
            records = []
        if records:
            self._record_arrival(now)
        if self._has_finished(records) and not self.ended:
            self.ended = True
            last = records[-1]
            ending = {"outcome": "finished"}
            records.append(replace(last, event=Event.STOP, values={}, attributes=ending, time=now))
        if not self.is_catching_up and (
            now - self.last_heartbeat_at >= HEARTBEAT_INTERVAL_SECONDS
            or now < self.last_heartbeat_at
        ):
            self.last_heartbeat_at = now
            if self.last_record is not None:
                records.append(self._heartbeat(self.last_record, now))
        return records

    def pop_notice(self) -> str:
        """What a person should know of how the log is read; each remark once."""
        remark = self.reader.notice if self.reader is not None else ""
        told, self.last_notice = self.last_notice, remark or self.last_notice
        return remark if remark != told else ""

    def positions(self) -> dict[str, ReadPosition]:
        """What must be stored to go on from here."""
        names = {"max_steps": self.max_steps}
        cursor = RingCursor(self.position, max(0, self.attempt))
        return {
            str(self.path): ReadPosition(cursor, names, CATCHING_UP if self.is_catching_up else "")
        }

    def pids(self) -> dict[int, int]:
        """No processes: whose log it is, is not known."""
        return {}

    def live_readers(self) -> list[RingReader]:
        """An empty list: a log has no rings."""
        return []

    def prepare_final_poll(self) -> bool:
        """Whether anything was held back until the end: nothing is."""
        return False

    def remove_rings(self) -> None:
        """The log is not ours to remove."""

    def _new_records(self) -> Iterator[Record]:
        """Records behind `mark`, some at a time, never a part of those that share a mark."""
        reading = self.reader or self._open_reader()
        count = 0
        while True:
            record, self.held_record = self.held_record or next(self.unread_records, None), None
            if record is None and reading.position + reading.pending_count < self.replay_until:
                # It is shorter than it was: begun anew while nobody looked.
                self.replay_until, self.base_attempt, self.reader = 0, self.attempt + 1, None
                self.position = 0
                return
            if record is None:
                self.is_catching_up = False
                # What is held back of an old log was told before it was read again.
                self.replay_until = (
                    0 if reading.position >= self.replay_until else self.replay_until
                )
                return
            if reading.position <= self.replay_until:
                self.base_attempt = self.attempt - record.attempt
                continue
            if count >= MAX_RECORDS_PER_POLL and reading.position > self.position:
                self.held_record = record
                return
            self.replay_until, count = 0, count + 1
            self.position, self.attempt = reading.position, self.base_attempt + record.attempt
            yield replace(record, run=self.run, attempt=self.attempt)

    def _open_reader(self) -> LogReader:
        self.reader = replace(open_log(self.path), clock=self.clock)
        self.unread_records = self.reader.follow()
        self.has_warned = False
        # What was told before is read again, since it says what the names mean.
        self.replay_until = self.position
        return self.reader

    def _reset_after_error(self, error: Exception) -> None:
        """Begin again at the next poll, from where we are."""
        self.reader, self.unread_records, self.held_record = None, iter(()), None
        if isinstance(error, FileNotFoundError):
            # It may be still to come.
            return
        if not self.has_warned:
            log.warning("The log %s cannot be read for now: %s", self.path, error)
        self.has_warned = True

    def _normalize(self, record: Record, now: float) -> Record:
        time = record.time if YEAR_2001 < record.time <= now else now
        self.last_record = replace(record, time=time, rank=WHOLE_RUN)
        for key in MAX_STEPS_KEYS:
            limit = record.values.get(key, 0.0)
            if isfinite(limit) and limit > 0:
                self.max_steps = int(limit)
        if record.event is Event.START:
            self.ended = False
        return self.last_record

    def _record_arrival(self, now: float) -> None:
        if not self.is_catching_up:
            self.arrival_gaps.append(now - self.last_arrival_at)
        self.last_arrival_at = now

    def _has_finished(self, records: list[Record]) -> bool:
        if self.is_catching_up or not records:
            return False
        last = records[-1]
        return END_OF_RUN_KEY in last.values or 0 < self.max_steps <= last.step

    def _heartbeat(self, last: Record, now: float) -> Record:
        idle = max(0.0, now - self.last_arrival_at)
        values = {"idle_seconds": idle}
        facts = {"state": "finished" if self.ended else "running"}
        if self.max_steps and not self.ended:
            # There is more to come, so its absence means something.
            values |= {"ranks_running": 1.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
            pace = (
                max(self.arrival_gaps)
                if len(self.arrival_gaps) >= MIN_ARRIVAL_GAPS
                else INITIAL_PACE_SECONDS
            )
            facts |= {"all_behind": "yes", "straggler_ranks": "0", "straggler_step": str(last.step)}
            facts |= {"max_gap_seconds": f"{pace:.1f}"}
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=last.step,
            time=now,
            event=Event.HEARTBEAT,
            values=values,
            attributes=facts,
            attempt=last.attempt,
            step_index=last.step_index,
        )
