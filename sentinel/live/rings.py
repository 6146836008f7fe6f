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

from sentinel.live.elastic_restart import ElasticRestartTracker
from sentinel.live.launcher_status import LauncherStatus
from sentinel.live.liveness import LiveRank, build_heartbeat, ranks_with_own_process
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.transport.command_page import remove_orphan_pages
from sentinel.transport.identity import Identity
from sentinel.transport.paths import list_rings, mark_ring_removed
from sentinel.transport.process import Process
from sentinel.transport.record_codec import PayloadError, RecordDecoder
from sentinel.transport.ring import RingCursor, RingError, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, MAX_CLIENT_ERRORS
from sentinel.transport.ring import ReadPosition

HEARTBEAT_INTERVAL_SECONDS = 0.5
UNREADABLE_RING_GRACE_SECONDS = 5.0
SCAN_INTERVAL_SECONDS = 0.25
"""How often new rings are looked for, and whether the processes of the known ones still run."""


@dataclass
class LiveRings:
    """Reads every ring of one run on this node.

    `known` are the stored positions by ring path. `clock` gives seconds since the epoch, `machine`
    what is new of the machine, by signal.
    """

    run: str
    counters: Counters
    stored_positions: Mapping[str, ReadPosition] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    new_machine_values: Callable[[], Mapping[str, float]] = dict
    ranks: dict[Path, LiveRank] = field(default_factory=dict)
    last_heartbeat_at: float = 0.0
    last_scan_at: float = 0.0
    last_poll_at: float = 0.0
    unreadable_since: dict[Path, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.launcher_status = LauncherStatus(self.run)
        self.elastic_restart = ElasticRestartTracker()

    def poll(self) -> list[Record]:
        """Everything new since the last call, in the order of each ring; never waits."""
        now = self.clock()
        self._adjust_for_clock_rollback(now)
        looks = now - self.last_scan_at >= SCAN_INTERVAL_SECONDS or now < self.last_scan_at
        if looks:
            self.last_scan_at = now
            self._scan(now)
            self.launcher_status.poll()
        records: list[Record] = []
        for rank in self.ranks.values():
            if not rank.ended:
                records.extend(self._read_ring(rank, now, check_process=looks))
        ending = [*self._launcher_records(now)]
        records.extend(ending)
        # Told with what it means: an agent that lingers for no time leaves right after it.
        fallen = bool(ending) or any(r.event is Event.STOP for r in records)
        if (
            fallen
            or now - self.last_heartbeat_at >= HEARTBEAT_INTERVAL_SECONDS
            or now < self.last_heartbeat_at
        ):
            self.last_heartbeat_at = now
            records.extend(self._heartbeats(now))
        return records

    def positions(self) -> dict[str, ReadPosition]:
        """What must be stored, by ring path."""
        return {
            str(path): ReadPosition(rank.cursor, rank.unpacker.schemas, rank.outcome, rank.ended_at)
            for path, rank in self.ranks.items()
        }

    def pids(self) -> dict[int, int]:
        """The processes of the newest attempt that still run, by rank; for any thread."""
        ranks = ranks_with_own_process(list(self.ranks.values()))
        headers = [rank.header for rank in ranks if not rank.ended]
        newest = max((header.identity.attempt for header in headers), default=-1)
        return {h.identity.rank: h.process.pid for h in headers if h.identity.attempt == newest}

    def live_readers(self) -> list[RingReader]:
        """The readers of the rings whose rank has not ended."""
        return [rank.reader for rank in self.ranks.values() if not rank.ended]

    @property
    def attempt(self) -> int:
        """The newest attempt seen; -1 before any rank was."""
        return max((rank.header.identity.attempt for rank in self.ranks.values()), default=-1)

    @property
    def first_identity(self) -> Identity | None:
        """The lowest rank on this node, of the newest attempt; None before any rank was seen."""
        current = [rank.header.identity for rank in self._newest_attempt_ranks()]
        return min(current, key=lambda who: who.local_rank, default=None)

    @property
    def ended(self) -> bool:
        """Whether every rank of the newest attempt has ended, and the command that began them."""
        if self.launcher_status.running or self.elastic_restart.awaiting_restart:
            return False
        current = self._newest_attempt_ranks()
        alone = self.launcher_status.ended_without_ranks([*self.ranks.values()])
        return alone or (bool(current) and all(rank.ended for rank in current))

    @property
    def ranks_expected(self) -> bool:
        """Whether there are ranks, or a command that may still begin some."""
        return bool(self.ranks) or self.launcher_status.running

    def prepare_final_poll(self) -> bool:
        """Have the next poll tell all, as the last that is made; whether anything was held back."""
        self.elastic_restart.is_shutting_down, self.last_heartbeat_at = True, 0.0
        return self.elastic_restart.awaiting_restart

    def remove_rings(self) -> None:
        """Remove the rings, once nobody will write to or read from them again."""
        for path, rank in self.ranks.items():
            rank.reader.close()
            mark_ring_removed(self.run, path)
            path.unlink(missing_ok=True)
        for directory in {path.parent for path in self.ranks}:
            remove_orphan_pages(directory)

    def _adjust_for_clock_rollback(self, now: float) -> None:
        """What was seen so long before a clock was set back, was seen so long before now."""
        by = max(0.0, self.last_poll_at - now)
        self.last_poll_at = now
        for rank in self.ranks.values() if by else ():
            rank.last_progress_at -= by
            rank.ended_at -= by if rank.ended else 0.0

    def _newest_attempt_ranks(self) -> list[LiveRank]:
        newest = self.attempt
        return [r for r in self.ranks.values() if r.header.identity.attempt == newest]

    def _scan(self, now: float) -> None:
        for path in list_rings(self.run):
            if path in self.ranks:
                continue
            try:
                self.ranks[path] = self._open_ring(path, now)
                self.elastic_restart.add_rank(self.ranks[path])
            except RingError:
                self._count_if_unreadable(path, now)

    def _count_if_unreadable(self, path: Path, now: float) -> None:
        """A ring still being made is whole a moment later; one that stays unreadable is counted."""
        since = self.unreadable_since.setdefault(path, now)
        if since + UNREADABLE_RING_GRACE_SECONDS <= now:
            self.counters.add("sentinel_dropped_records_total", "ring_refused")
            self.unreadable_since[path] = inf

    def _open_ring(self, path: Path, now: float) -> LiveRank:
        reader = RingReader(path)
        header = reader.read_header()
        known = self.stored_positions.get(str(path))
        unpacker = RecordDecoder(
            self.run,
            header.identity.attempt,
            header.identity.rank,
            dict(known.reader_state) if known else {},
        )
        moved = min(now, header.last_time)
        if known is None:
            return LiveRank(reader, unpacker, RingCursor(0, 0), header, moved)
        return LiveRank(
            reader, unpacker, known.cursor, header, moved, known.outcome, known.ended_at
        )

    def _read_ring(self, rank: LiveRank, now: float, *, check_process: bool) -> Iterator[Record]:
        # Asked before reading: whatever a dead process wrote is then surely seen.
        alive = not check_process or rank.header.process.is_alive()
        header = rank.reader.read_header()
        # A hook that is off takes no steps that we could see, which is no standstill.
        if (
            header.last_step_index != rank.header.last_step_index
            or header.errors >= MAX_CLIENT_ERRORS
        ):
            rank.last_progress_at = now
        rank.header = header
        batch = rank.reader.read(rank.cursor)
        rank.cursor = batch.cursor
        for reason, count in (("overrun", batch.lost_frames), ("corrupt", batch.corrupt_frames)):
            if count:
                self.counters.add("sentinel_dropped_records_total", reason, count)
        for payload, sequence in zip(batch.payloads, batch.sequences, strict=True):
            record = self._unpack(rank, payload, sequence)
            if record is not None:
                yield record
        self._update_counters(rank)
        if not rank.ended and not (alive and header.outcome == "running"):
            # A hook that had to switch itself off still says how it ended, in the header.
            rank.outcome = "died" if header.outcome == "running" else header.outcome
            rank.ended_at = now
            yield self._synthesize_stop(rank, now)

    def _unpack(self, rank: LiveRank, payload: bytes, sequence: int) -> Record | None:
        try:
            record = rank.unpacker.decode(payload, sequence)
        except PayloadError:
            self.counters.add("sentinel_dropped_records_total", "payload")
            return None
        if record is not None and record.event is Event.START:
            return _mark_if_gathered(rank.header.process, record)
        if record is not None and record.event is Event.STOP:
            rank.outcome = record.attributes.get("outcome", "finished")
            rank.ended_at, rank.stop_attributes = self.clock(), record.attributes
        return record

    def _synthesize_stop(self, rank: LiveRank, now: float) -> Record:
        header = rank.header
        return Record(
            run=self.run,
            rank=header.identity.rank,
            step=header.last_step,
            time=now,
            event=Event.STOP,
            attributes={"outcome": rank.outcome},
            attempt=header.identity.attempt,
            step_index=header.last_step_index,
        )

    def _update_counters(self, rank: LiveRank) -> None:
        header, who = rank.header, str(rank.header.identity.rank)
        self.counters.set("sentinel_client_overhead_seconds_total", who, header.overhead_ns / 1e9)
        self.counters.set("sentinel_client_errors_total", who, header.errors)
        for reason, old, new in zip(
            DROP_REASONS, rank.reported_drops, header.drop_counts, strict=True
        ):
            if new > old:
                self.counters.add("sentinel_dropped_records_total", reason, new - old)
        rank.reported_drops = header.drop_counts

    def _launcher_records(self, now: float) -> Iterator[Record]:
        ranks = [*self.ranks.values()]
        attempt = self.attempt + self.launcher_status.ended_without_ranks(ranks)
        yield from self.launcher_status.end_records(ranks, attempt, now)

    def _heartbeats(self, now: float) -> Iterator[Record]:
        if self.launcher_status.ended_without_ranks([*self.ranks.values()]):
            tick = self.launcher_status.heartbeat_without_ranks(self.attempt + 1, now)
            if tick is not None:
                yield tick
        elif self.ranks:
            yield self.heartbeat(now)

    def heartbeat(self, now: float) -> Record:
        """What the source itself has to say: how the ranks are, and, when news, the machine.

        The fact `final` is there if this is the last that is said.
        """
        current = self._newest_attempt_ranks()
        told = self.launcher_status.annotate_heartbeat(
            build_heartbeat(self.run, current, now), current
        )
        told = self.elastic_restart.annotate_heartbeat(told, current, now)
        last = {"final": "yes"} if self.elastic_restart.is_shutting_down else {}
        values, facts = {**told.values, **self.new_machine_values()}, {**told.attributes, **last}
        return replace(told, values=values, attributes=facts)


def _mark_if_gathered(process: Process, start: Record) -> Record:
    """A START, with the fact `via_collective` where another rank's process wrote it down."""
    own = start.attributes.get("pid", str(process.pid)) == str(process.pid)
    return (
        start if own else replace(start, attributes={**start.attributes, "via_collective": "yes"})
    )
