"""Polls the rings of a run's ranks on this node, and reports which ranks are alive.

`poll` returns the records since the last call, and twice a second a heartbeat with the time and
the state of the ranks. A rank whose process is gone without a STOP record gets one here. Nothing in
this package writes to a ring or accesses a trainer.

If more is unread than one call may return, the rank that is read least far is always read next, so
that no rank's records are read long before those of the others. Heartbeats and ends of processes do
not wait for that: a heartbeat names the ranks with unread records, whose steps must not be closed.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from math import inf
from pathlib import Path

from sentinel.live.elastic_restart import ElasticRestartTracker
from sentinel.live.end_evidence import EndEvidence
from sentinel.live.job_state import JobState
from sentinel.live.launcher_status import LauncherStatus
from sentinel.live.liveness import StopRequest, build_heartbeat, ranks_with_own_process
from sentinel.live.process_watch import ProcessWatch
from sentinel.live.rank import LiveRank
from sentinel.live.stack_sampler import StackSampler
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.transport.command_page import remove_orphan_pages
from sentinel.transport.identity import Identity
from sentinel.transport.launch_status import remove_launch_files
from sentinel.transport.paths import (
    is_agent_running,
    list_rings,
    list_shared_rings,
    mark_ring_removed,
    shared_state_path,
)
from sentinel.transport.ring import NO_LIMIT, ReadPosition, RingError, RingReader, read_header
from sentinel.transport.ring_layout import NORMAL_OUTCOMES
from sentinel.transport.row_page import row_page_path
from sentinel.transport.slurm_job import SlurmJob
from sentinel.transport.stack_channel import remove_channel

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 0.5
FAILURE_HEARTBEAT_INTERVAL_SECONDS = 0.1
"""Interval for `FAILURE_SETTLE_SECONDS` after a rank failed, so that it is soon reported."""
FAILURE_SETTLE_SECONDS = 6.0
UNREADABLE_RING_GRACE_SECONDS = 5.0
MAX_FRAMES_PER_READ = 32
"""Records of one rank that are read before the rank that is then furthest behind."""
LAUNCHER_EXIT_SECONDS = 1.0
"""How long an agent that ends waits for `sentinel run`, which may get the same signal later."""
SCAN_INTERVAL_SECONDS = 0.25
"""Time between scans for new rings, and for processes that are exiting."""
MAX_POLL_GAP_SECONDS = 2.0
"""Longest time between two polls that counts as time in which the ranks were observed."""
STALE_AFTER_SECONDS = 24 * 3600.0
"""Time since a rank's last step after which its ring is stale."""


@dataclass
class LiveRings:
    """Reads every ring of one run on this node.

    `stored_positions` are the positions of an earlier agent, by ring path. `clock` returns seconds
    since the epoch, `new_machine_values` new measurements of the node, by signal. `stop_request` is
    the signal that this agent received. `keep_messages` is whether messages of exceptions are
    stored. `predecessor` read the rings before in this process: what it held of the processes of
    the ranks, which cannot be learned of one that has ended, is taken over.
    """

    run: str
    counters: Counters
    stored_positions: Mapping[str, ReadPosition] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    new_machine_values: Callable[[], Mapping[str, float]] = dict
    ranks: dict[Path, LiveRank] = field(default_factory=dict)
    stop_request: StopRequest | None = None
    keep_messages: bool = True
    predecessor: InitVar[LiveRings | None] = None
    last_heartbeat_at: float = 0.0
    last_scan_at: float = 0.0
    last_poll_at: float = 0.0
    unreadable_since: dict[Path, float] = field(default_factory=dict)

    def __post_init__(self, predecessor: LiveRings | None) -> None:
        self.launcher_status = LauncherStatus(self.run)
        self.job_state = JobState(SlurmJob.of_environment(os.environ))
        self.stack_sampler = StackSampler()
        self.end_evidence: dict[Path, EndEvidence] = {}
        """What the predecessor knew of how each rank may end, by the path of its ring."""
        if predecessor is None:
            self.elastic_restart = ElasticRestartTracker()
            self.process_watch = ProcessWatch(lambda: self.clock())  # noqa: PLW0108 - tests replace the clock
            return
        self.elastic_restart = predecessor.elastic_restart
        self.elastic_restart.is_shutting_down = False
        self.stop_request = predecessor.stop_request
        self.process_watch = predecessor.process_watch
        known = {path: rank.evidence for path, rank in predecessor.ranks.items()}
        self.end_evidence = predecessor.end_evidence | known

    def poll(self, max_records: int = NO_LIMIT, max_step_index: float = inf) -> list[Record]:
        """New records since the last call, in the order of each ring; never waits.

        About `max_records` of the ranks, and no further ones of those that are read up to
        `max_step_index`; `has_unread` is whether there are more.
        """
        now = self.clock()
        self._adjust_for_unobserved_time(now)
        scan_due = now - self.last_scan_at >= SCAN_INTERVAL_SECONDS or now < self.last_scan_at
        if scan_due:
            self.last_scan_at = now
            self._scan(now)
            self.launcher_status.poll()
        # Before the rings are read, so that everything a dead process wrote is read.
        self.process_watch.update(thorough=scan_due)
        records = self._read_ranks(now, max_records, max_step_index)
        if any(map(_is_failure, records)):
            # A peer of a dead rank raises within milliseconds: look for the dead rank now.
            self.process_watch.update(thorough=True)
            records += self._read_ranks(now, max_records, max_step_index)
        running = [rank for rank in self._newest_attempt_ranks() if not rank.outcome]
        self.stack_sampler.poll(ranks_with_own_process(running), now)
        launcher_records = [*self._launcher_records(now)]
        records.extend(launcher_records)
        # An exit is sent with its heartbeat: an agent without linger time exits right after it.
        has_exit = bool(launcher_records) or any(r.event is Event.STOP for r in records)
        if (
            has_exit
            or now - self.last_heartbeat_at >= self._heartbeat_interval(now)
            or now < self.last_heartbeat_at
        ):
            self.last_heartbeat_at = now
            records.extend(self._heartbeats(now))
        return records

    def wait(self, seconds: float) -> None:
        """Wait; returns early when the process of a rank ends."""
        self.process_watch.wait(seconds)

    def request_stop(self, signal_name: str) -> None:
        """Note that this agent received a signal to end, which the ranks may have received too."""
        # The successor of an agent that was replaced meanwhile is asked once more.
        self.stop_request = self.stop_request or StopRequest(signal_name, self.clock(), "agent")

    @property
    def has_unread(self) -> bool:
        """Whether the last poll left records in the rings."""
        return any(rank.has_unread for rank in self.ranks.values())

    def _read_ranks(self, now: float, max_records: int, max_step_index: float) -> list[Record]:
        """Records of all ranks, always of the one next that is read least far."""
        unread: list[tuple[int, int, int, LiveRank]] = []
        ends = self.process_watch.ends
        for number, rank in enumerate(self.ranks.values()):
            if rank.has_stopped:
                continue
            process_end = ends.get(rank.header.process)
            rank.update(now, self.counters, process_end)
            if rank.has_unread or rank.has_ended(process_end):
                attempt = rank.header.identity.attempt
                unread.append((attempt, rank.read_step_index, number, rank))
            else:
                rank.polled_at = now
        heapq.heapify(unread)
        records: list[Record] = []
        while unread and len(records) < max_records and unread[0][1] < max_step_index:
            attempt, _, number, rank = unread[0]
            process_end = ends.get(rank.header.process)
            records += rank.read(now, self.counters, process_end, MAX_FRAMES_PER_READ)
            if rank.has_unread:
                heapq.heapreplace(unread, (attempt, rank.read_step_index, number, rank))
            else:
                heapq.heappop(unread)
        return records

    def _unread_attributes(self) -> dict[str, str]:
        """The ranks of the oldest attempt with unread records, as `unread_ranks`."""
        unread = [rank.header.identity for rank in self.ranks.values() if rank.has_unread]
        if not unread:
            return {}
        oldest = min(identity.attempt for identity in unread)
        ranks = (str(identity.rank) for identity in unread if identity.attempt == oldest)
        return {"unread_ranks": ",".join(ranks)}

    def _heartbeat_interval(self, now: float) -> float:
        failed_at = [
            rank.ended_at
            for rank in self.ranks.values()
            if rank.outcome and rank.outcome not in NORMAL_OUTCOMES
        ]
        is_recent = now - max(failed_at, default=-inf) < FAILURE_SETTLE_SECONDS
        is_exiting = self.process_watch.has_exiting()
        return (
            FAILURE_HEARTBEAT_INTERVAL_SECONDS
            if is_recent or is_exiting
            else HEARTBEAT_INTERVAL_SECONDS
        )

    def positions(self) -> dict[str, ReadPosition]:
        """What must be stored, by ring path."""
        return {str(path): rank.position for path, rank in self.ranks.items()}

    def pids(self) -> dict[int, int]:
        """Pids of the newest attempt's running processes, by rank. Thread-safe."""
        ranks = ranks_with_own_process(list(self.ranks.values()))
        headers = [rank.header for rank in ranks if not rank.ended]
        newest = max((header.identity.attempt for header in headers), default=-1)
        return {h.identity.rank: h.process.pid for h in headers if h.identity.attempt == newest}

    def ring_paths(self) -> dict[int, Path]:
        """Paths of the rings of the newest attempt's ranks, by rank, also of those that ended."""
        return {each.header.identity.rank: each.path for each in self._newest_attempt_ranks()}

    def live_readers(self) -> list[RingReader]:
        """The readers of the rings whose rank has not ended."""
        return [rank.reader for rank in self.ranks.values() if not rank.ended]

    @property
    def attempt(self) -> int:
        """The newest attempt; -1 before the first rank."""
        return max([rank.header.identity.attempt for rank in self.ranks.values()], default=-1)

    @property
    def first_identity(self) -> Identity | None:
        """The newest attempt's lowest rank on this node; None before the first rank."""
        identities = [rank.header.identity for rank in self._newest_attempt_ranks()]
        return min(identities, key=lambda identity: identity.local_rank, default=None)

    @property
    def ended(self) -> bool:
        """Whether every rank of the newest attempt has ended, and their launcher's command too."""
        if self.launcher_status.running or self.elastic_restart.awaiting_restart:
            return False
        current = self._newest_attempt_ranks()
        without_ranks = self.launcher_status.ended_without_ranks([*self.ranks.values()])
        return without_ranks or (bool(current) and all(rank.has_stopped for rank in current))

    @property
    def ranks_expected(self) -> bool:
        """Whether there are ranks, or a command that may still start some."""
        return bool(self.ranks) or self.launcher_status.running

    def prepare_final_poll(self) -> bool:
        """Make the next poll report everything; returns whether a failure may be held back.

        Waits up to a second for the exit status of a command whose ranks have ended.
        """
        ended = [rank for rank in self._newest_attempt_ranks() if rank.ended]
        has_failure = self.elastic_restart.awaiting_restart or any(
            rank.outcome not in NORMAL_OUTCOMES for rank in ended
        )
        if has_failure and not self.pids():
            self.launcher_status.await_exit(LAUNCHER_EXIT_SECONDS)
        self.elastic_restart.is_shutting_down, self.last_heartbeat_at = True, 0.0
        return has_failure

    def remove_rings(self) -> None:
        """Remove the rings, once no process writes or reads them."""
        self.close()
        self.process_watch.close()
        for path in self.ranks:
            mark_ring_removed(self.run, path)
            _remove_ring(path)
        for directory in {path.parent for path in self.ranks}:
            remove_orphan_pages(directory)

    def close(self) -> None:
        """Release the rings; their processes are watched until `remove_rings`, by a successor."""
        self.stack_sampler.close()
        for rank in self.ranks.values():
            rank.reader.close()

    def heartbeat(self, now: float) -> Record:
        """The heartbeat of the newest attempt, with new measurements of the node.

        The attribute `final` marks the last heartbeat of the agent; `unread_ranks` are ranks whose
        rings hold records that `poll` did not return yet.
        """
        current = self._newest_attempt_ranks()
        heartbeat = self.launcher_status.annotate_heartbeat(
            build_heartbeat(
                self.run,
                current,
                now,
                stop_request=self._stop_request(),
                stack_sampler=self.stack_sampler,
            ),
            current,
        )
        heartbeat = self.elastic_restart.annotate_heartbeat(heartbeat, current, now)
        is_final = self.elastic_restart.is_shutting_down
        heartbeat = self.job_state.annotate_heartbeat(heartbeat, is_final=is_final)
        final = {"final": "yes"} if is_final else {}
        return replace(
            heartbeat,
            values={**heartbeat.values, **self.new_machine_values()},
            attributes={**heartbeat.attributes, **self._unread_attributes(), **final},
        )

    def _stop_request(self) -> StopRequest | None:
        """The signal that `sentinel run` passed to the run, else that which this agent received."""
        return self.launcher_status.stop_request or self.stop_request

    def _adjust_for_unobserved_time(self, now: float) -> None:
        """Shift stored times by what passed without observation, so that idle times stay the same.

        The clock was set back or forward, or this agent was suspended: with its job, or with the
        machine. The times of ends stay in their order, unless the clock was set back.
        """
        elapsed = now - (self.last_poll_at or now)
        self.last_poll_at = now
        rollback = max(0.0, -elapsed)
        shift = max(0.0, elapsed - MAX_POLL_GAP_SECONDS) - rollback
        for rank in self.ranks.values() if shift else ():
            rank.last_progress_at += shift
            rank.last_activity_at += shift
            rank.polled_at -= rollback
            rank.ended_at -= rollback if rank.ended else 0.0

    def _newest_attempt_ranks(self) -> list[LiveRank]:
        newest = self.attempt
        return [r for r in self.ranks.values() if r.header.identity.attempt == newest]

    def _scan(self, now: float) -> None:
        for path in list_rings(self.run, known={str(path) for path in self.ranks}):
            stored = self.stored_positions.get(str(path))
            try:
                rank = LiveRank.open(self.run, path, stored, now, keep_messages=self.keep_messages)
                self.ranks[path] = rank
                if not rank.ended:
                    rank.evidence = self.end_evidence.get(path, rank.evidence)
                    self.process_watch.add(rank.header.process)
                self.job_state.job = rank.evidence.job or self.job_state.job
                self.elastic_restart.add_rank(rank)
            except RingError as error:
                self._count_if_unreadable(path, now, error)

    def _count_if_unreadable(self, path: Path, now: float, error: RingError) -> None:
        """Count and log a ring that stays unreadable; one that is still being created does not."""
        since = self.unreadable_since.setdefault(path, now)
        if since + UNREADABLE_RING_GRACE_SECONDS <= now:
            log.warning("A rank is not monitored: %s", error)
            self.counters.add("sentinel_dropped_records_total", "ring_refused")
            self.unreadable_since[path] = inf

    def _launcher_records(self, now: float) -> Iterator[Record]:
        ranks = [*self.ranks.values()]
        attempt = self.attempt + self.launcher_status.ended_without_ranks(ranks)
        yield from self.launcher_status.end_records(ranks, attempt, now)

    def _heartbeats(self, now: float) -> Iterator[Record]:
        if self.launcher_status.ended_without_ranks([*self.ranks.values()]):
            heartbeat = self.launcher_status.heartbeat_without_ranks(self.attempt + 1, now)
            if heartbeat is not None:
                yield heartbeat
        elif self.ranks:
            yield self.heartbeat(now)


def _is_failure(record: Record) -> bool:
    return (
        record.event is Event.STOP
        and record.attributes.get("outcome", "finished") not in NORMAL_OUTCOMES
    )


def remove_stale_rings(now: float) -> list[Path]:
    """Remove this user's stale rings; `now` is in seconds since the epoch. Returns their paths.

    An agent removes the rings of its own run. The rings of a run without an agent would fill the
    shared memory of the machine, so the next agent removes them once they are old.
    """
    removed = [path for path in list_shared_rings() if _is_stale(path, now)]
    for path in removed:
        _remove_ring(path)
        run = path.parent.name
        # A database there moves to the home directory first.
        if not is_agent_running(path.parent) and not shared_state_path(run).exists():
            remove_launch_files(run)
        remove_orphan_pages(path.parent)
    return removed


def _remove_ring(path: Path) -> None:
    remove_channel(path)
    row_page_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _is_stale(path: Path, now: float) -> bool:
    header = read_header(path)
    if header is None or now - header.last_time <= STALE_AFTER_SECONDS:
        return False
    return not header.process.is_alive()
