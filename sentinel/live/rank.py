"""One live rank: its ring, the position in it, and the state of its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.live.end_evidence import EndEvidence
from sentinel.live.process_watch import ProcessEnd
from sentinel.model.counters import Counters
from sentinel.model.rank_end import RankEnd, is_connection_error
from sentinel.model.record import COLLECTIVE_KEY, Event, Record
from sentinel.transport.record_codec import (
    PayloadError,
    RecordDecoder,
    UnknownSchemaError,
    names_interval,
)
from sentinel.transport.ring import NO_LIMIT, ReadPosition, RingCursor, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, MAX_CLIENT_ERRORS, RingHeader


@dataclass
class LiveRank:
    """A rank whose ring is being read.

    `last_progress_at` is when the agent last saw it advance a step, by the agent's clock, since the
    trainer's clock may be wrong. `outcome` is "" while the rank runs, and "died" if its process is
    gone without a STOP record, which is known before its last records are read. `has_stopped` is
    whether its STOP was returned, after which there are no records. `end_attributes` are those of
    its STOP record, with what is known of the end of its process. `keep_messages` is whether
    messages of exceptions are stored. `polled_at` is when everything written so far was last read.
    """

    reader: RingReader
    decoder: RecordDecoder
    cursor: RingCursor
    header: RingHeader
    last_progress_at: float
    outcome: str = ""
    ended_at: float = 0.0
    end_attributes: Mapping[str, str] = field(default_factory=dict)
    keep_messages: bool = True
    evidence: EndEvidence = field(default_factory=EndEvidence)
    last_activity_at: float = 0.0
    """When the agent last saw a sign of life outside steps, by its clock."""
    counted_header: RingHeader | None = None
    """The header from which the counters were last updated."""
    reported_drops: tuple[int, ...] = (0,) * len(DROP_REASONS)
    polled_at: float = 0.0
    read_step_index: int = 0
    """Step index of the last record read; 0 before the first."""
    has_start: bool = False
    """Whether its START was returned, or one in its place if it was overwritten."""
    has_stopped: bool = False
    names_searched_to: int = 0
    """Ring position up to which names were searched, for records whose names were overwritten."""
    has_unread: bool = False
    """Whether the last `read` stopped at its limit."""

    @staticmethod
    def open(
        run: str, path: Path, stored: ReadPosition | None, now: float, *, keep_messages: bool = True
    ) -> LiveRank:
        """The rank of that ring, read from the stored position on. Raises RingError."""
        reader = RingReader(path)
        header = reader.read_header()
        identity = header.identity
        schemas = dict(stored.reader_state) if stored else {}
        decoder = RecordDecoder(run, identity.attempt, identity.rank, schemas)
        progress_at = min(now, header.last_time)
        rank = LiveRank(reader, decoder, RingCursor(), header, progress_at)
        # Of an end before this agent started, the time of the last step is known.
        rank.keep_messages, rank.polled_at = keep_messages, progress_at
        if stored is not None:
            rank.cursor, rank.outcome, rank.ended_at = (
                stored.cursor,
                stored.outcome,
                stored.ended_at,
            )
            rank.end_attributes, rank.has_stopped = stored.end_attributes, bool(stored.outcome)
            rank.has_start = stored.cursor.sequence > 0
        if not rank.ended:
            rank.evidence = EndEvidence.find(header.process)
        return rank

    @property
    def path(self) -> Path:
        """The path of its ring."""
        return self.reader.path

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def is_disabled(self) -> bool:
        """Whether its client disabled itself and publishes no steps; that is not a stall."""
        return not self.ended and self.header.errors >= MAX_CLIENT_ERRORS

    @property
    def is_lost_peer(self) -> bool:
        """Whether rank 0 lost its connection to it, in the collective: it has no process here."""
        return self.outcome == "died" and COLLECTIVE_KEY in self.end_attributes

    @property
    def last_sign_of_life_at(self) -> float:
        """When the agent last saw it advance a step or be active otherwise."""
        return max(self.last_progress_at, self.last_activity_at)

    @property
    def position(self) -> ReadPosition:
        """What must be stored to continue after a restart of the agent."""
        schemas = self.decoder.schemas
        if not self.has_stopped:
            return ReadPosition(self.cursor, schemas)
        return ReadPosition(self.cursor, schemas, self.outcome, self.ended_at, self.end_attributes)

    @property
    def end(self) -> RankEnd:
        """How it ended."""
        attributes = {**self.end_attributes, "outcome": self.outcome}
        return RankEnd((self.header.identity.rank,), self.ended_at, attributes)

    def update(self, now: float, counters: Counters, process_end: ProcessEnd | None) -> None:
        """Read the header, and note the end of its process, which is `process_end` if known."""
        header = self.reader.read_header()
        has_advanced = header.last_step_index != self.header.last_step_index
        # A rank that ended while what it wrote is still read does not stall.
        is_over = header.outcome != "running" and not self.ended
        if header.activity_count != self.header.activity_count or is_over:
            self.last_activity_at = now
        self.header = header
        if has_advanced or self.is_disabled:
            self.last_progress_at = now
        if header is not self.counted_header:
            self.counted_header = header
            self._update_counters(counters)
        if process_end is None:
            self.evidence.update(now)
        else:
            # What a dead process wrote is visible.
            self.reader.grace_seconds = 0.0
        if process_end is not None and header.outcome == "running" and not self.ended:
            self._note_missing_stop(now, process_end)
        self.has_unread = header.position > self.cursor.position

    def read(
        self,
        now: float,
        counters: Counters,
        process_end: ProcessEnd | None,
        max_frames: int = NO_LIMIT,
    ) -> Iterator[Record]:
        """Up to `max_frames` new records; after the last, a STOP for a rank that ended without one.

        `process_end` is the end of its process, known before the last `update`, so that everything
        that a dead process wrote is read.
        """
        result = self.reader.read(self.cursor, max_frames=max_frames)
        self.cursor, self.has_unread = result.cursor, len(result.payloads) >= max_frames
        for reason, count in (("overrun", result.lost_frames), ("corrupt", result.corrupt_frames)):
            if count:
                counters.add("sentinel_dropped_records_total", reason, count)
        for payload, sequence in zip(result.payloads, result.sequences, strict=True):
            record = self._decode(payload, sequence, result.payloads, counters)
            if record is not None:
                if not self.has_start and record.event is not Event.START:
                    yield self._lost_start()
                self.has_start = True
                self.read_step_index = max(self.read_step_index, record.step_index)
                yield self._complete(record, now)
        if self.has_ended(process_end) and not self.has_stopped and result.is_complete:
            yield self._missing_stop(now, process_end)
        if self.has_stopped:
            self.has_unread = False
        if not self.has_unread:
            self.polled_at = now

    def has_ended(self, process_end: ProcessEnd | None) -> bool:
        """Whether it writes no further records, as far as its header and `process_end` show."""
        return self.ended or process_end is not None or self.header.outcome != "running"

    def _search_names(self, payloads: Sequence[bytes]) -> None:
        """Learn names that follow: an overrun ring has lost those before its oldest records."""
        if self.cursor.position < self.names_searched_to:
            return
        ahead = self.reader.read(self.cursor, max_bytes=2 * names_interval(self.header.capacity))
        self.names_searched_to = ahead.cursor.position
        for payload in (*payloads, *ahead.payloads):
            self.decoder.learn_names(payload)

    def _decode(
        self, payload: bytes, sequence: int, payloads: Sequence[bytes], counters: Counters
    ) -> Record | None:
        """The record of a payload, one of `payloads`; None if it holds none, or none is decoded."""
        try:
            try:
                return self.decoder.decode(payload, sequence)
            except UnknownSchemaError:
                self._search_names(payloads)
                return self.decoder.decode(payload, sequence)
        except PayloadError:
            counters.add("sentinel_dropped_records_total", "payload")
            return None

    def _complete(self, record: Record, now: float) -> Record:
        """The record, with what is known here of a start or of an end, which is noted."""
        if record.event is Event.START:
            return self._mark_if_gathered(record)
        if record.event is Event.STOP:
            record = replace(record, attributes=self._stop_attributes(record.attributes))
            self.outcome = record.attributes.get("outcome", "finished")
            self.ended_at = self._clamp_time(record.time, now)
            self.end_attributes, self.has_stopped = record.attributes, True
        return record

    def _stop_attributes(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Those of a STOP, with a mark for an error of a connection, and without its message if
        messages are not stored.
        """
        marks = {"connection_error": "yes"} if is_connection_error(attributes) else {}
        dropped = () if self.keep_messages else ("message", "caused_by")
        return {name: text for name, text in attributes.items() if name not in dropped} | marks

    def _clamp_time(self, time: float, now: float) -> float:
        """A time of this machine as one since `polled_at`, whatever its clock did."""
        return min(now, max(time, self.polled_at))

    def _mark_if_gathered(self, start: Record) -> Record:
        """The START, with the attribute `via_collective` if another rank's process wrote it."""
        own_pid = str(self.header.process.pid)
        if start.attributes.get("pid", own_pid) == own_pid:
            return start
        return replace(start, attributes={**start.attributes, "via_collective": "yes"})

    def _lost_start(self) -> Record:
        """A START in place of an overwritten one, by what the header knows of the rank."""
        identity, process = self.header.identity, self.header.process
        sizes = {
            "world_size": float(identity.world_size),
            "local_world_size": float(identity.local_world_size),
        }
        return Record(
            run=self.decoder.run,
            rank=identity.rank,
            step=0,
            time=self.header.created_at,
            event=Event.START,
            values=sizes,
            attributes={"host": identity.host, "pid": str(process.pid)},
            attempt=identity.attempt,
        )

    def _missing_stop(self, now: float, process_end: ProcessEnd | None) -> Record:
        """The STOP of such an end."""
        if not self.ended:
            self._note_missing_stop(now, process_end)
        self.has_stopped = True
        identity = self.header.identity
        return Record(
            run=self.decoder.run,
            rank=identity.rank,
            step=self.header.last_step,
            time=now,
            event=Event.STOP,
            attributes={"outcome": self.outcome, **self.end_attributes},
            attempt=identity.attempt,
            step_index=self.header.last_step_index,
        )

    def _note_missing_stop(self, now: float, process_end: ProcessEnd | None) -> None:
        """Note an end without a STOP, or whose STOP was lost."""
        outcome, known = self.header.outcome, dict[str, str]()
        if outcome == "running":
            outcome = "died"
        if process_end is not None and outcome in ("died", "exception"):
            known = dict(self.evidence.attributes(process_end))
        if outcome == "died" and known.get("code") == "0":
            # A script may end with `os._exit(0)`, so that its libraries cannot fail at the end.
            outcome, known = "finished", {}
        # A client that disabled itself writes no STOP, but its outcome is in the header.
        self.outcome = known.pop("outcome", outcome)
        self.ended_at = now if process_end is None else self._clamp_time(process_end.ended_at, now)
        self.end_attributes = self._stop_attributes(known)

    def _update_counters(self, counters: Counters) -> None:
        header, rank = self.header, str(self.header.identity.rank)
        counters.set("sentinel_client_overhead_seconds_total", rank, header.overhead_ns / 1e9)
        counters.set("sentinel_client_errors_total", rank, header.errors)
        if header.drop_counts == self.reported_drops:
            return
        for reason, old, new in zip(
            DROP_REASONS, self.reported_drops, header.drop_counts, strict=True
        ):
            if new > old:
                counters.add("sentinel_dropped_records_total", reason, new - old)
        self.reported_drops = header.drop_counts
