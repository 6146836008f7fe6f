"""Collective: the opt-in path over torch.distributed, for where only rank 0 may have an agent.

Each rank's records are in its ring as ever. From time to time they are gathered to rank 0, which
keeps them in rings in the names of the others, for the agent of its node to read. Nothing is done
but at steps, in the thread that began the run, and nobody waits for anybody; after the first
trouble it is over for this attempt, and every node starts an agent of its own: the direct path.

One turn follows the other: look for the training's process group; come to an agreement; gather;
and, on rank 0, hear out who left.
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
"""Seconds that a gather may be under way, and steps that are taken meanwhile, at least."""
MIN_STEPS_BEFORE_TIMEOUT = 3
DRAIN_SECONDS = 0.2
"""Seconds that rank 0, as it ends, gives the others for their last words, at most; where it fails,
gloo, to tell of those that are gone: the training's own connections may do so a moment earlier."""
PEER_CHECKS_PER_DRAIN = 4
"""How often it looks meanwhile whether anybody is still there."""


class CollectiveOffError(Exception):
    """It is over; the text says why."""


class CollectiveAggregation:
    """One rank's part. `tell` says facts of the run, `serve` starts the agent of this node."""

    runs_started = 0
    """Runs of this process so far: each has keys of its own in the store."""

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
        self._gather_number, self._steps_waited, self._last_waited_index, self._sent_at = (
            0,
            0,
            0,
            0.0,
        )

    def step(self, step_index: int) -> None:
        """A step was taken. Raises only what is an error of ours."""
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
        """Hand over what is left, as this rank ends. Rank 0 gives the others a moment."""
        try:
            self._finish(outcome)
        except BaseException as error:
            self._abort(error)
            raise

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self._stage = None
        self._replica_rings.abandon()

    def _run_stage(self, stage: Callable[[int], None], step_index: int) -> None:
        try:
            stage(step_index)
        except (CollectiveOffError, NotReadyError, GatherGroupError) as over:
            self._switch_off(over)

    def _finish(self, outcome: str) -> None:
        turn, self._stage = self._stage, None
        gathering = self._gather_group
        if turn == self._gather_if_due and gathering is not None:
            if self.identity.rank == 0:
                self._drain(outcome)
            elif gathering.dismissed or gathering.lost_ranks([0]):
                self._start_own_agent()
            else:
                self._send_final_chunk(OUTCOMES.index(outcome))
        elif turn == self._poll_shutdown and self._shutdown is not None:
            self._shutdown.close()
        elif turn is not None:
            self._start_own_agent()

    def _step_in_other_thread(self, step_index: int) -> None:  # noqa: ARG002 - as every turn
        """A step was taken in another thread: none of ours, unless all of them are."""
        if not self._poll_count and monotonic() - self._started_at > READY_TIMEOUT_SECONDS:
            raise CollectiveOffError(
                "steps are taken in another thread than the one that began the run"
            )

    def _find_process_group(self, step_index: int) -> None:  # noqa: ARG002 - as every turn
        """Look for the process group of the training, which is begun when it likes."""
        now = monotonic()
        if now < self._next_poll_at:
            return
        self._next_poll_at, self._poll_count = now + POLL_INTERVAL_SECONDS, self._poll_count + 1
        group = process_group()
        if group is None:
            if now - self._started_at > READY_TIMEOUT_SECONDS and self._poll_count >= MIN_POLLS:
                raise CollectiveOffError("the training has no process group")
            return
        ours = self.identity.rank, self.identity.world_size
        if (group.get_rank(), group.get_world_size()) != ours:
            raise CollectiveOffError(
                "the process group counts its ranks otherwise than the launcher"
            )
        self._readiness = join(
            group, CollectiveAggregation.runs_started, *ours, self.ring.path.parent
        )
        self._stage = self._poll_readiness

    def _poll_readiness(self, step_index: int) -> None:
        assert self._readiness is not None
        start = self._readiness.poll(step_index, monotonic())
        if start is not None:
            self._start_gathering(self._readiness, start)
            self._gather_if_due(step_index)

    def _start_gathering(self, readiness: ReadinessCheck, schedule: GatherSchedule) -> None:
        self._gather_group = GatherGroup(readiness.store, readiness.rank, readiness.world_size)
        silent = readiness.node_id == schedule.head_node_id
        self._sender = CollectiveSender(self.ring.path, self.identity, silent)
        self._interval_steps, self._next_gather_index, self._stage = (
            schedule.interval_steps,
            schedule.step_index,
            self._gather_if_due,
        )
        self._readiness = None
        self._report_attributes({COLLECTIVE_KEY: f"on: every {self._interval_steps} steps"})

    def _gather_if_due(self, step_index: int) -> None:
        gathering = self._gather_group
        assert gathering is not None
        if gathering.dismissed:
            raise CollectiveOffError("rank 0 gathers no more")
        self._replica_rings.write_queued(self._interval_steps)
        if gathering.busy and not self._poll_gather(gathering):
            self._check_timeout(step_index)
            return
        if step_index >= self._next_gather_index:
            # By a grid that is the same on all: whoever was held up makes up for it.
            self._next_gather_index += self._interval_steps
            self._gather_number, self._steps_waited = self._gather_number + 1, 0
            self._last_waited_index, self._sent_at = step_index, monotonic()
            assert self._sender is not None
            self._sender.fill_chunk(gathering.send_buffer, self._gather_number)
            gathering.start_gather()

    def _poll_gather(self, gather_group: GatherGroup) -> bool:
        if not gather_group.poll_gather():
            return False
        came = gather_group.received_chunks() if self.identity.rank == 0 else []
        self._replica_rings.enqueue(each for each in came if each[1].number == self._gather_number)
        return True

    def _check_timeout(self, step_index: int) -> None:
        """Many logs may speak of one step, in which the others stand as well: steps are counted."""
        self._steps_waited += step_index != self._last_waited_index
        self._last_waited_index = step_index
        if (
            self._steps_waited >= MIN_STEPS_BEFORE_TIMEOUT
            and monotonic() - self._sent_at > GATHER_TIMEOUT_SECONDS
        ):
            raise CollectiveOffError("timed out")

    def _switch_off(self, why: Exception) -> None:
        """Never again in this attempt: the direct path takes over."""
        self._stage = None
        gathering = self._gather_group
        if gathering is None or self.identity.rank:
            if gathering is not None:
                self._send_final_chunk(chunk.STILL_RUNNING)
            self._report_off(str(why))
            self._start_own_agent()
            return
        self._shutdown = CollectiveShutdown(gathering, self._replica_rings, self._report_off, why)
        self._stage = self._poll_shutdown

    def _poll_shutdown(self, step_index: int) -> None:  # noqa: ARG002 - as every turn
        assert self._shutdown is not None
        if self._shutdown.poll():
            self._stage = None

    def _drain(self, outcome: str) -> None:
        """The end of rank 0: the others' last words are most often there, or are about to be."""
        gathering, waits_till = self._gather_group, monotonic() + DRAIN_SECONDS
        assert gathering is not None
        failed, looks_at = outcome in ("exception", "exit"), 0.0
        try:
            while not self._has_all_final_chunks(gathering) and (failed or outcome == "finished"):
                now = monotonic()
                looks = failed and now >= looks_at
                if now > waits_till or (looks and not gathering.has_live_peers()):
                    break
                looks_at = now + DRAIN_SECONDS / PEER_CHECKS_PER_DRAIN if looks else looks_at
                sleep(0.002)
            why: Exception | None = None
        except GatherGroupError as over:
            why = over
        CollectiveShutdown(gathering, self._replica_rings, self._report_off, why).close()

    def _has_all_final_chunks(self, gather_group: GatherGroup) -> bool:
        arrived = not gather_group.busy or self._poll_gather(gather_group)
        self._replica_rings.write_queued()
        return arrived and self._replica_rings.by_rank.keys() <= gather_group.final_chunks().keys()

    def _send_final_chunk(self, outcome_index: int) -> None:
        """Hand rank 0 what is left. A ring that it so has the whole of, nobody else will read."""
        gathering, outgoing = self._gather_group, self._sender
        assert gathering is not None
        assert outgoing is not None
        memory = bytearray(chunk.CHUNK_BYTES)
        outgoing.fill_final_chunk(memory, self._gather_number, outcome_index)
        gathering.send_final_chunk(memory)
        outgoing.close()
        if outcome_index != chunk.STILL_RUNNING and not outgoing.is_local:
            mark_ring_removed(self.identity.run, self.ring.path)
            self.ring.path.unlink(missing_ok=True)

    def _report_off(self, why: str) -> None:
        self._report_attributes({COLLECTIVE_KEY: f"off: {why}"})

    def _abort(self, error: BaseException) -> None:
        """After an error of ours. Rings in the others' names must not look as if they had ended."""
        self._stage = None
        self._start_own_agent()
        why = type(error).__name__
        self._report_off(why)
        for rank in [*self._replica_rings.by_rank]:
            self._replica_rings.close(rank, UNKNOWN_OUTCOME, {COLLECTIVE_KEY: f"off: {why}"})

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
