"""Agreement of all ranks to gather from a given step on, without waiting for any rank.

Ranks use the store of the training's process group, through a separate connection. Once all ranks
have joined, rank 0 schedules a step some seconds ahead. A rank that reads the schedule in time
marks itself ready; at that step every rank counts the ready ranks. Ranks that step together count
the same number, since the last rank marked itself at least a step earlier. If a rank missed the
schedule, rank 0 schedules another step.
"""

from __future__ import annotations

import json
import sys
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sentinel.client.collective import chunk
from sentinel.client.process_group import default_store
from sentinel.transport.ring_layout import RING_VERSION

POLL_INTERVAL_SECONDS = 0.25
"""Time between two polls of the store."""
READY_TIMEOUT_SECONDS = 60.0
"""A rank gives up after this time, but not before `MIN_POLLS` polls."""
MIN_POLLS = 8
LEAD_SECONDS = 2.0
"""Time from scheduling a step to the step."""
MAX_ROUNDS = 10
"""Number of steps that are scheduled before the ranks give up."""
GATHER_INTERVAL_SECONDS, MAX_INTERVAL_STEPS = 1.0, 10
"""Gathers run about once a second, and at least every `MAX_INTERVAL_STEPS` steps."""
_MAX_LISTED_RANKS = 16
"""Ranks that a message lists by number."""


class NotReadyError(Exception):
    """The ranks will not gather; the message states the reason."""


class GatherSchedule(NamedTuple):
    """First step index, interval of the gathers in steps, and the node of rank 0."""

    step_index: int
    interval_steps: int
    head_node_id: int


class ReadinessCheck:
    """The agreement, as seen by one rank. `store` is a store of torch.distributed.

    `fingerprint` must be equal on all ranks; `node_id` identifies this node.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, fingerprint: str, node_id: int
    ) -> None:
        self.store, self.rank, self.world_size, self.fingerprint, self.node_id = (
            store,
            rank,
            world_size,
            fingerprint,
            node_id,
        )
        self.schedule: GatherSchedule | None = None
        self.poll_count = self.round_number = 0
        self._started_at: float | None = None
        self._next_poll_at = 0.0
        self._last_step = (0, 0.0)
        self._seconds_per_step = 0.0
        """Recent time per step; 0 while unknown."""
        self._scheduled_at = (0, 0.0)
        """Step index and time at which this rank read the schedule."""

    def poll(self, step_index: int, now: float) -> GatherSchedule | None:
        """The schedule, once its step has come. `now` is in seconds of any clock.

        Raises NotReadyError.
        """
        try:
            return self._poll_store(step_index, now)
        except RuntimeError as error:
            # Stores raise RuntimeError for every failure, including an unreachable host.
            raise NotReadyError(f"the store does not answer ({type(error).__name__})") from None

    def _poll_store(self, step_index: int, now: float) -> GatherSchedule | None:
        if self._started_at is None:
            self._started_at = now
            self.store.set(f"joined/{self.rank}", self.fingerprint)
            self.store.add(f"count/{self.fingerprint}", 1)
        if self.schedule is not None:
            return self._confirm_when_due(self.schedule, step_index, now)
        if now < self._next_poll_at:
            return None
        # Many ranks poll one store: the interval grows with their number.
        self._next_poll_at = now + max(POLL_INTERVAL_SECONDS, self.world_size / 1024)
        self._update_step_time(step_index, now)
        self.poll_count += 1
        if self.rank == 0:
            self._propose_schedule(step_index)
        else:
            self._poll_proposal(step_index)
        late = now - self._started_at > READY_TIMEOUT_SECONDS and self.poll_count >= MIN_POLLS
        if self.schedule is not None:
            self._scheduled_at = step_index, now
        elif late:
            raise NotReadyError(self._missing_reason("joined"))
        return None

    def _update_step_time(self, step_index: int, now: float) -> None:
        last_index, last_time = self._last_step
        if last_time and step_index > last_index:
            elapsed = now - last_time
            self._seconds_per_step = max(1e-6, elapsed / (step_index - last_index))
        self._last_step = step_index, now

    def _propose_schedule(self, step_index: int) -> None:
        if (
            not self._seconds_per_step
            or self.store.add(f"count/{self.fingerprint}", 0) < self.world_size
        ):
            return
        lead_steps = (
            4
            if self._seconds_per_step > 2 * POLL_INTERVAL_SECONDS
            else ceil(LEAD_SECONDS / self._seconds_per_step) + 4
        )
        interval_steps = min(
            MAX_INTERVAL_STEPS, max(1, int(GATHER_INTERVAL_SECONDS / self._seconds_per_step))
        )
        self.schedule = GatherSchedule(step_index + lead_steps, interval_steps, self.node_id)
        self.store.set(f"schedule/{self.round_number}", json.dumps(self.schedule))
        self._mark_ready()

    def _poll_proposal(self, step_index: int) -> None:
        key = f"schedule/{self.round_number}"
        if not self.store.check([key]):
            return
        schedule = GatherSchedule(*map(int, json.loads(self.store.get(key))))
        if step_index > schedule.step_index - 2:
            # Too late for this schedule: other ranks may be counting already.
            self._next_round()
        else:
            self.schedule = schedule
            self._mark_ready()

    def _mark_ready(self) -> None:
        self.store.set(f"ready/{self.round_number}/{self.rank}", b"1")
        self.store.add(f"ready/{self.round_number}", 1)

    def _confirm_when_due(
        self, schedule: GatherSchedule, step_index: int, now: float
    ) -> GatherSchedule | None:
        """The schedule, at its step. A schedule whose step does not come in time is withdrawn.

        Steps may become slow, or step indices may have jumped while their time was measured;
        meanwhile other nodes have no agent. Ranks that reach the step later count too few.
        """
        if step_index >= schedule.step_index:
            return self._count_ready(schedule, step_index)
        scheduled_index, scheduled_time = self._scheduled_at
        is_late = now - scheduled_time > READY_TIMEOUT_SECONDS
        if is_late and step_index - scheduled_index >= MIN_POLLS:
            self.store.add(f"ready/{self.round_number}", -self.world_size)
            raise NotReadyError("not ready: the scheduled step did not come in time")
        return None

    def _count_ready(self, schedule: GatherSchedule, step_index: int) -> GatherSchedule | None:
        if self.store.add(f"ready/{self.round_number}", 0) >= self.world_size:
            return schedule._replace(step_index=step_index)
        key = f"ready/{self.round_number}"
        self._next_round()
        if self.round_number >= MAX_ROUNDS:
            raise NotReadyError(self._missing_reason(key))
        return None

    def _next_round(self) -> None:
        self.round_number, self.schedule = self.round_number + 1, None

    def _missing_reason(self, key: str) -> str:
        if self.rank:
            return "not ready"
        others = range(1, self.world_size)
        absent = [rank for rank in others if not self.store.check([f"{key}/{rank}"])]
        if key != "joined":
            return f"not ready: {format_ranks(absent)} did not confirm in time"
        if absent:
            return f"not ready: {format_ranks(absent)} without sentinel, or without the collective"
        return "not ready: ranks run different versions of sentinel"


def join(
    group: Any, run_number: int, rank: int, world_size: int, directory: Path
) -> ReadinessCheck:
    """Join the agreement of the ranks of the process group.

    `group` is torch.distributed, `run_number` counts the runs of this process, and `directory`
    holds the rings. Raises NotReadyError.
    """
    return ReadinessCheck(
        _clone_store(group, run_number),
        rank,
        world_size,
        _fingerprint(world_size),
        _node_id(directory),
    )


def _clone_store(group: Any, number: int) -> Any:
    """A separate connection to the store of the process group, with a key prefix for the run."""
    store = default_store(group)
    if not hasattr(store, "clone"):
        raise NotReadyError("torch 2.8 or newer is required")
    if not group.is_gloo_available():
        raise NotReadyError("this torch is built without gloo")
    try:
        return group.PrefixStore(f"sentinel/{number}", store.clone())
    except RuntimeError as error:
        raise NotReadyError(f"cannot clone the store ({type(error).__name__})") from None


def _fingerprint(world_size: int) -> str:
    """A hash of everything that must be equal on all ranks."""
    terms = (chunk.CHUNK_VERSION, chunk.CHUNK_BYTES, RING_VERSION, sys.byteorder, world_size)
    return f"{crc32(repr(terms).encode()):08x}"


def _node_id(directory: Path) -> int:
    """Equal for ranks whose rings are in one directory, and so are read by one agent."""
    status = directory.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return crc32(repr((boot, status.st_dev, status.st_ino)).encode())


def format_ranks(ranks: list[int]) -> str:
    """Ranks as text.

    >>> format_ranks([3]), format_ranks([1, 3]), format_ranks([*range(40)])[-24:]
    ('rank 3', 'ranks 1 and 3', '13, 14, 15 and 24 others')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MAX_LISTED_RANKS:
        first = ", ".join(map(str, ranks[:_MAX_LISTED_RANKS]))
        return f"ranks {first} and {len(ranks) - _MAX_LISTED_RANKS} others"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}"
