"""Follows a growing log in place of a run's rings.

The content at the start is history, which sends no notifications. A log does not show that its
trainer died; a pause is evaluated by the log's own pace, and only if the number of steps is known.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, YEAR_2001, Event, Record
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_reader import LogReader
from sentinel.readers.media import LoggedMedia
from sentinel.readers.rows import MAX_STEPS_KEYS
from sentinel.transport.ring import ReadPosition, RingCursor, RingReader

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 0.5
MAX_RECORDS_PER_POLL = 2000
"""Approximate number of records in one poll by default."""

INITIAL_MAX_GAP_SECONDS = 120.0
"""Gap between records that is assumed at first: TensorBoard's writers flush every 120 s."""

MAX_ARRIVAL_GAPS, MIN_ARRIVAL_GAPS = 50, 10
"""Most gaps between arrivals that are stored, and least that determine the log's pace."""

END_OF_RUN_KEY = "train_runtime"
"""A key that transformers logs once, at the end of the run."""

CATCHING_UP = "behind"
"""Stored outcome of a log whose history is still being read."""


@dataclass
class LogFollower:
    """Polls the log at `path`, which need not exist yet, as the run `run`.

    It has the interface of LiveRings. `stored_positions` are the positions of an earlier agent.
    `clock` returns seconds since the epoch. `max_steps` is the run's last step, if known; the log
    may set it. `keys` are logged keys with their signals, from the settings. `on_media` is called
    with each image and histogram, again when the log has to be read from its beginning.
    """

    run: str
    path: Path
    counters: Counters
    stored_positions: Mapping[str, ReadPosition] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    max_steps: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    on_media: Callable[[LoggedMedia], None] = lambda _: None
    is_catching_up: bool = True
    ended: bool = False
    ranks_expected: bool = True
    attempt: int = -1
    first_identity: None = None
    """A log covers the whole run: it has no ranks and no other nodes."""
    position: int = 0
    last_record: Record | None = None
    last_heartbeat_at: float = 0.0
    last_arrival_at: float = 0.0
    """When a record last arrived, by `clock`."""

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

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def request_stop(self, signal_name: str) -> None:
        """Ignore that the agent ends: a log has no processes."""

    @property
    def has_unread(self) -> bool:
        """Whether the last poll reached its limit."""
        return self.held_record is not None

    def poll(
        self,
        max_records: int = MAX_RECORDS_PER_POLL,
        max_step_index: float = inf,  # noqa: ARG002
    ) -> list[Record]:
        """About `max_records` new records, as of the whole run; never raises an error of the log.

        Records with one position in the log are returned together. A log has no ranks that could be
        read up to `max_step_index`.
        """
        now = self.clock()
        self.last_arrival_at = self.last_arrival_at or now
        try:
            records = [self._normalize(record, now) for record in self._new_records(max_records)]
        except (OSError, ValueError) as error:
            self._reset_after_error(error)
            records = []
        if records:
            self._record_arrival(now)
        if self._has_finished(records) and not self.ended:
            self.ended = True
            last = records[-1]
            outcome = {"outcome": "finished"}
            records.append(replace(last, event=Event.STOP, values={}, attributes=outcome))
        if not self.is_catching_up and (
            now - self.last_heartbeat_at >= HEARTBEAT_INTERVAL_SECONDS
            or now < self.last_heartbeat_at
        ):
            self.last_heartbeat_at = now
            if self.last_record is not None:
                records.append(self._heartbeat(self.last_record, now))
        return records

    def pop_notice(self) -> str:
        """The reader's message for the user; each message once, else ""."""
        notice = self.reader.notice if self.reader is not None else ""
        last, self.last_notice = self.last_notice, notice or self.last_notice
        return notice if notice != last else ""

    def positions(self) -> dict[str, ReadPosition]:
        """What must be stored to continue after a restart."""
        state = {"max_steps": self.max_steps}
        cursor = RingCursor(self.position, max(0, self.attempt))
        return {
            str(self.path): ReadPosition(cursor, state, CATCHING_UP if self.is_catching_up else "")
        }

    def pids(self) -> dict[int, int]:
        """No pids: the process that writes the log is not known."""
        return {}

    def ring_paths(self) -> dict[int, Path]:
        """Empty: a log has no rings."""
        return {}

    def live_readers(self) -> list[RingReader]:
        """An empty list: a log has no rings."""
        return []

    def prepare_final_poll(self) -> bool:
        """Whether an exit was held back: never for a log."""
        return False

    def remove_rings(self) -> None:
        """Nothing: a log is never removed."""

    def close(self) -> None:
        """Nothing: each poll opens the log."""

    def _new_records(self, max_records: int) -> Iterator[Record]:
        """Records after `position`, in parts; records with one position stay together."""
        reader = self.reader or self._open_reader()
        count = 0
        while True:
            record, self.held_record = self.held_record or next(self.unread_records, None), None
            if record is None and reader.position + reader.pending_count < self.replay_until:
                # The log is shorter than its stored position: it was started over meanwhile.
                self.replay_until, self.base_attempt, self.reader = 0, self.attempt + 1, None
                self.position = 0
                return
            if record is None:
                self.is_catching_up = False
                # A last row that is held back now may have been returned before the restart.
                if reader.position >= self.replay_until:
                    self.replay_until = 0
                return
            if reader.position <= self.replay_until:
                self.base_attempt = self.attempt - record.attempt
                continue
            if count >= max_records and reader.position > self.position:
                self.held_record = record
                return
            self.replay_until, count = 0, count + 1
            self.position, self.attempt = reader.position, self.base_attempt + record.attempt
            yield replace(record, run=self.run, attempt=self.attempt)

    def _open_reader(self) -> LogReader:
        self.reader = replace(
            open_log(self.path, is_live=True),
            clock=self.clock,
            keys=self.keys,
            on_media=self.on_media,
        )
        self.unread_records = self.reader.follow()
        self.has_warned = False
        # Records before the position are read again, since they decide what the keys mean.
        self.replay_until = self.position
        return self.reader

    def _reset_after_error(self, error: Exception) -> None:
        """Reopen the log at the next poll, and continue at the current position."""
        self.reader, self.unread_records, self.held_record = None, iter(()), None
        if isinstance(error, FileNotFoundError):
            # The log may not be written yet.
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
        attributes = {"state": "finished" if self.ended else "running"}
        if self.max_steps and not self.ended:
            # More steps are expected, so a pause is a stall.
            values |= {"ranks_running": 1.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
            has_pace = len(self.arrival_gaps) >= MIN_ARRIVAL_GAPS
            max_gap = max(self.arrival_gaps) if has_pace else INITIAL_MAX_GAP_SECONDS
            attributes |= {
                "all_behind": "yes",
                "straggler_ranks": "0",
                "straggler_step": str(last.step),
                "max_gap_seconds": f"{max_gap:.1f}",
            }
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=last.step,
            time=now,
            event=Event.HEARTBEAT,
            values=values,
            attributes=attributes,
            attempt=last.attempt,
            step_index=last.step_index,
        )
