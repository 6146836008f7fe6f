"""Opt-in aggregation over torch.distributed, where only the node of rank 0 may have an agent.

Each rank writes its records to its own ring. At intervals rank 0 gathers them and writes them to
replica rings, which the agent of its node reads. Work is done only at steps, in the thread that
began the run, and no rank waits for another. After the first failure the collective is switched off
for this attempt, and every node starts its own agent: the direct path.

The stages are: find the training's process group; agree on a first step; gather; and, on rank 0,
collect the final chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from time import monotonic, sleep
from typing import Any

from sentinel.client.collective import chunk
from sentinel.client.collective.gather_group import GatherGroup, GatherGroupError
from sentinel.client.collective.readiness import (
    MIN_POLLS,
    POLL_INTERVAL_SECONDS,
    READY_TIMEOUT_SECONDS,
    GatherSchedule,
    NotReadyError,
    ReadinessCheck,
    join,
)
from sentinel.client.collective.replica_rings import ReplicaRings
from sentinel.client.collective.sender import CollectiveSender
from sentinel.client.collective.shutdown import CollectiveShutdown
from sentinel.client.guard import ErrorGuard
from sentinel.client.process_group import process_group
from sentinel.client.recorder import Recorder
from sentinel.model.record import COLLECTIVE_KEY, UNKNOWN_OUTCOME, Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import mark_ring_removed
from sentinel.transport.ring import RingWriter
from sentinel.transport.ring_layout import OUTCOMES

GATHER_TIMEOUT_SECONDS = 10.0
"""A gather times out after this time and `MIN_STEPS_BEFORE_TIMEOUT` steps."""
MIN_STEPS_BEFORE_TIMEOUT = 3
DRAIN_SECONDS = 0.2
"""Maximum time that rank 0 waits at its end for the final chunks of the others. If rank 0 fails,
gloo may need this time to detect ranks that are gone."""
PEER_CHECKS_PER_DRAIN = 4
"""How often rank 0 checks during this time whether any rank is still connected."""


class CollectiveOffError(Exception):
    """The collective is switched off; the message states the reason."""


class CollectiveAggregation:
    """The collective on one rank.

    `report_attributes` records run metadata; `start_agent` starts the agent of this node.
    """

    runs_started = 0
    """Runs of this process so far. Each has its own keys in the store."""

    def __init__(
        self,
        ring: RingWriter,
        identity: Identity,
        report_attributes: Callable[[Mapping[str, str]], None],
        start_agent: Callable[[], None],
    ) -> None:
        CollectiveAggregation.runs_started += 1
        self.ring, self.identity = ring, identity
        self._report_attributes, self._start_agent = report_attributes, start_agent
        self._owner_thread = get_ident()
        self._stage: Callable[[int], None] | None = self._find_process_group
        self._started_at, self._poll_count, self._next_poll_at = monotonic(), 0, 0.0
        self._readiness: ReadinessCheck | None = None
        self._gather_group: GatherGroup | None = None
        self._sender: CollectiveSender | None = None
        self._shutdown: CollectiveShutdown | None = None
        self._replica_rings = ReplicaRings(identity, ring.count_drop)
        self._interval_steps, self._next_gather_index = 1, 0
        self._gather_number = self._steps_waited = self._last_waited_index = 0
        self._sent_at = 0.0

    def step(self, step_index: int) -> None:
        """Run the current stage after a step. Raises only internal errors."""
        if self._stage is None:
            return
        try:
            self._run_stage(
                self._stage if get_ident() == self._owner_thread else self._step_in_other_thread,
                step_index,
            )
        except BaseException as error:
            self._abort(error)
            raise

    def close(self, outcome: str) -> None:
        """Send what is left as this rank ends. Rank 0 waits briefly for the others."""
        try:
            self._finish(outcome)
        except BaseException as error:
            self._abort(error)
            raise

    def abandon(self) -> None:
        """Release everything in a forked child."""
        self._stage = None
        self._replica_rings.abandon()

    def _run_stage(self, stage: Callable[[int], None], step_index: int) -> None:
        try:
            stage(step_index)
        except (CollectiveOffError, NotReadyError, GatherGroupError) as error:
            self._switch_off(error)

    def _finish(self, outcome: str) -> None:
        stage, self._stage = self._stage, None
        group = self._gather_group
        if stage == self._gather_if_due and group is not None:
            if self.identity.rank == 0:
                self._drain(outcome)
            elif group.dismissed or group.lost_ranks([0]):
                self._start_own_agent()
            else:
                self._send_final_chunk(OUTCOMES.index(outcome))
        elif stage == self._poll_shutdown and self._shutdown is not None:
            self._shutdown.close()
        elif stage is not None:
            self._start_own_agent()

    def _step_in_other_thread(self, step_index: int) -> None:  # noqa: ARG002 - as every stage
        """Ignore a step in another thread, unless all steps are taken there."""
        if not self._poll_count and monotonic() - self._started_at > READY_TIMEOUT_SECONDS:
            raise CollectiveOffError(
                "steps are taken in a different thread from the one that began the run"
            )

    def _find_process_group(self, step_index: int) -> None:  # noqa: ARG002 - as every stage
        """Check whether the training has initialized its process group."""
        now = monotonic()
        if now < self._next_poll_at:
            return
        self._next_poll_at, self._poll_count = now + POLL_INTERVAL_SECONDS, self._poll_count + 1
        group = process_group()
        if group is None:
            if now - self._started_at > READY_TIMEOUT_SECONDS and self._poll_count >= MIN_POLLS:
                raise CollectiveOffError("the training has no process group")
            return
        rank_and_size = self.identity.rank, self.identity.world_size
        if (group.get_rank(), group.get_world_size()) != rank_and_size:
            raise CollectiveOffError("rank or world size of the process group and launcher differ")
        self._readiness = join(
            group, CollectiveAggregation.runs_started, *rank_and_size, self.ring.path.parent
        )
        self._stage = self._poll_readiness

    def _poll_readiness(self, step_index: int) -> None:
        assert self._readiness is not None
        schedule = self._readiness.poll(step_index, monotonic())
        if schedule is not None:
            self._start_gathering(self._readiness, schedule)
            self._gather_if_due(step_index)

    def _start_gathering(self, readiness: ReadinessCheck, schedule: GatherSchedule) -> None:
        self._gather_group = GatherGroup(readiness.store, readiness.rank, readiness.world_size)
        is_local = readiness.node_id == schedule.head_node_id
        self._sender = CollectiveSender(self.ring.path, self.identity, is_local)
        self._interval_steps = schedule.interval_steps
        self._next_gather_index, self._stage = schedule.step_index, self._gather_if_due
        self._readiness = None
        self._report_attributes({COLLECTIVE_KEY: f"on: every {self._interval_steps} steps"})

    def _gather_if_due(self, step_index: int) -> None:
        group = self._gather_group
        assert group is not None
        if group.dismissed:
            raise CollectiveOffError("rank 0 stopped gathering")
        self._replica_rings.write_queued(self._interval_steps)
        if group.busy and not self._poll_gather(group):
            self._check_timeout(step_index)
            return
        if step_index >= self._next_gather_index:
            # The same step indices on all ranks: a rank that was delayed catches up.
            self._next_gather_index += self._interval_steps
            self._gather_number, self._steps_waited = self._gather_number + 1, 0
            self._last_waited_index, self._sent_at = step_index, monotonic()
            assert self._sender is not None
            self._sender.fill_chunk(group.send_buffer, self._gather_number)
            group.start_gather()

    def _poll_gather(self, gather_group: GatherGroup) -> bool:
        if not gather_group.poll_gather():
            return False
        received = gather_group.received_chunks() if self.identity.rank == 0 else []
        current = [each for each in received if each[1].number == self._gather_number]
        self._replica_rings.enqueue(current)
        return True

    def _check_timeout(self, step_index: int) -> None:
        """Raise on a timeout. It counts steps, not logs: several logs may belong to one step."""
        self._steps_waited += step_index != self._last_waited_index
        self._last_waited_index = step_index
        if (
            self._steps_waited >= MIN_STEPS_BEFORE_TIMEOUT
            and monotonic() - self._sent_at > GATHER_TIMEOUT_SECONDS
        ):
            raise CollectiveOffError("timed out")

    def _switch_off(self, error: Exception) -> None:
        """Switch the collective off for this attempt; the direct path takes over."""
        self._stage = None
        group = self._gather_group
        if group is None or self.identity.rank:
            if group is not None:
                self._send_final_chunk(chunk.STILL_RUNNING)
            self._report_off(str(error))
            self._start_own_agent()
            return
        self._shutdown = CollectiveShutdown(group, self._replica_rings, self._report_off, error)
        self._stage = self._poll_shutdown

    def _poll_shutdown(self, step_index: int) -> None:  # noqa: ARG002 - as every stage
        assert self._shutdown is not None
        if self._shutdown.poll():
            self._stage = None

    def _drain(self, outcome: str) -> None:
        """Wait briefly for the final chunks of the others, then close the replica rings."""
        group, deadline = self._gather_group, monotonic() + DRAIN_SECONDS
        assert group is not None
        has_failed, next_check_at = outcome in ("exception", "exit"), 0.0
        try:
            while not self._has_all_final_chunks(group) and (has_failed or outcome == "finished"):
                now = monotonic()
                is_check_due = has_failed and now >= next_check_at
                if now > deadline or (is_check_due and not group.has_live_peers()):
                    break
                if is_check_due:
                    next_check_at = now + DRAIN_SECONDS / PEER_CHECKS_PER_DRAIN
                sleep(0.002)
            error: Exception | None = None
        except GatherGroupError as group_error:
            error = group_error
        CollectiveShutdown(group, self._replica_rings, self._report_off, error).close()

    def _has_all_final_chunks(self, gather_group: GatherGroup) -> bool:
        arrived = not gather_group.busy or self._poll_gather(gather_group)
        self._replica_rings.write_queued()
        return arrived and self._replica_rings.by_rank.keys() <= gather_group.final_chunks().keys()

    def _send_final_chunk(self, outcome_index: int) -> None:
        """Send rank 0 what is left, and remove the ring if rank 0 then has all of it."""
        group, sender = self._gather_group, self._sender
        assert group is not None
        assert sender is not None
        buffer = bytearray(chunk.CHUNK_BYTES)
        sender.fill_final_chunk(buffer, self._gather_number, outcome_index)
        group.send_final_chunk(buffer)
        sender.close()
        if outcome_index != chunk.STILL_RUNNING and not sender.is_local:
            mark_ring_removed(self.identity.run, self.ring.path)
            self.ring.path.unlink(missing_ok=True)

    def _report_off(self, reason: str) -> None:
        self._report_attributes({COLLECTIVE_KEY: f"off: {reason}"})

    def _abort(self, error: BaseException) -> None:
        """Stop after an internal error. Replica rings must not look as if their ranks had ended."""
        self._stage = None
        self._start_own_agent()
        reason = type(error).__name__
        self._report_off(reason)
        for rank in [*self._replica_rings.by_rank]:
            self._replica_rings.close(rank, UNKNOWN_OUTCOME, {COLLECTIVE_KEY: f"off: {reason}"})

    def _start_own_agent(self) -> None:
        if self.identity.rank:
            self._start_agent()


class CollectiveRecorder(Recorder):
    """A recorder whose steps also drive the collective aggregation."""

    def __init__(
        self,
        ring: RingWriter,
        guard: ErrorGuard,
        on_poll: Callable[[], None],
        identity: Identity,
        start_agent: Callable[[], None],
    ) -> None:
        self.collective = CollectiveAggregation(
            ring,
            identity,
            lambda attributes: self.record_event(Event.METADATA, None, attributes),
            start_agent,
        )
        super().__init__(ring, guard, on_poll, self.collective.step)

    def close(self, attributes: Mapping[str, Any]) -> None:
        """Close; rank 0 collects from the others before its STOP, they send after theirs."""
        is_head = self.collective.identity.rank == 0
        if is_head:
            self._finish_collective(attributes)
        super().close(attributes)
        if not is_head:
            self._finish_collective(attributes)

    def abandon(self) -> None:
        """Release the ring and the replica rings in a forked child."""
        super().abandon()
        self.collective.abandon()

    def _finish_collective(self, attributes: Mapping[str, Any]) -> None:
        try:
            self.collective.close(str(attributes["outcome"]))
        except Exception as error:
            self.try_lock.guard.handle_error(error)
