"""One live rank: its ring, the position in it, and the state of its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.transport.record_codec import PayloadError, RecordDecoder
from sentinel.transport.ring import ReadPosition, RingCursor, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, MAX_CLIENT_ERRORS, RingHeader


@dataclass
class LiveRank:
    """A rank whose ring is being read.

    `last_progress_at` is when the agent last saw it advance a step, by the agent's clock, since the
    trainer's clock may be wrong. `outcome` is "" while the rank runs, and "died" if its process is
    gone without a STOP record. `stop_attributes` are those of its STOP record.
    """

    reader: RingReader
    decoder: RecordDecoder
    cursor: RingCursor
    header: RingHeader
    last_progress_at: float
    outcome: str = ""
    ended_at: float = 0.0
    stop_attributes: Mapping[str, str] = field(default_factory=dict)
    reported_drops: tuple[int, ...] = (0,) * len(DROP_REASONS)

    @staticmethod
    def open(run: str, path: Path, stored: ReadPosition | None, now: float) -> LiveRank:
        """The rank of that ring, read from the stored position on. Raises RingError."""
        reader = RingReader(path)
        header = reader.read_header()
        identity = header.identity
        schemas = dict(stored.reader_state) if stored else {}
        decoder = RecordDecoder(run, identity.attempt, identity.rank, schemas)
        progress_at = min(now, header.last_time)
        if stored is None:
            return LiveRank(reader, decoder, RingCursor(), header, progress_at)
        return LiveRank(
            reader, decoder, stored.cursor, header, progress_at, stored.outcome, stored.ended_at
        )

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def position(self) -> ReadPosition:
        """What must be stored to continue after a restart of the agent."""
        return ReadPosition(self.cursor, self.decoder.schemas, self.outcome, self.ended_at)

    def read(self, now: float, counters: Counters, *, check_process: bool) -> Iterator[Record]:
        """New records; a STOP is added for a rank that ended without one."""
        # Checked before the ring is read, so that everything a dead process wrote is read.
        alive = not check_process or self.header.process.is_alive()
        header = self.reader.read_header()
        # A disabled client publishes no steps; that is not a stall.
        is_disabled = header.errors >= MAX_CLIENT_ERRORS
        if header.last_step_index != self.header.last_step_index or is_disabled:
            self.last_progress_at = now
        self.header = header
        result = self.reader.read(self.cursor)
        self.cursor = result.cursor
        for reason, count in (("overrun", result.lost_frames), ("corrupt", result.corrupt_frames)):
            if count:
                counters.add("sentinel_dropped_records_total", reason, count)
        for payload, sequence in zip(result.payloads, result.sequences, strict=True):
            record = self._decode(payload, sequence, now, counters)
            if record is not None:
                yield record
        self._update_counters(counters)
        if not self.ended and not (alive and header.outcome == "running"):
            # A client that disabled itself writes no STOP, but its outcome is in the header.
            self.outcome = "died" if header.outcome == "running" else header.outcome
            self.ended_at = now
            yield self._missing_stop(now)

    def _decode(
        self, payload: bytes, sequence: int, now: float, counters: Counters
    ) -> Record | None:
        try:
            record = self.decoder.decode(payload, sequence)
        except PayloadError:
            counters.add("sentinel_dropped_records_total", "payload")
            return None
        if record is not None and record.event is Event.START:
            return self._mark_if_gathered(record)
        if record is not None and record.event is Event.STOP:
            self.outcome = record.attributes.get("outcome", "finished")
            self.ended_at, self.stop_attributes = now, record.attributes
        return record

    def _mark_if_gathered(self, start: Record) -> Record:
        """The START, with the attribute `via_collective` if another rank's process wrote it."""
        own_pid = str(self.header.process.pid)
        if start.attributes.get("pid", own_pid) == own_pid:
            return start
        return replace(start, attributes={**start.attributes, "via_collective": "yes"})

    def _missing_stop(self, now: float) -> Record:
        identity = self.header.identity
        return Record(
            run=self.decoder.run,
            rank=identity.rank,
            step=self.header.last_step,
            time=now,
            event=Event.STOP,
            attributes={"outcome": self.outcome},
            attempt=identity.attempt,
            step_index=self.header.last_step_index,
        )

    def _update_counters(self, counters: Counters) -> None:
        header, rank = self.header, str(self.header.identity.rank)
        counters.set("sentinel_client_overhead_seconds_total", rank, header.overhead_ns / 1e9)
        counters.set("sentinel_client_errors_total", rank, header.errors)
        for reason, old, new in zip(
            DROP_REASONS, self.reported_drops, header.drop_counts, strict=True
        ):
            if new > old:
                counters.add("sentinel_dropped_records_total", reason, new - old)
        self.reported_drops = header.drop_counts
