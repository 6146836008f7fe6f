"""Quorum: whether every rank is ready to gather, and from which step on; nobody ever waits for it.

Ranks leave word in the store of the training's own process group, through a connection of ours.
Rank 0 sees when all have come, and names a step some seconds ahead. Whoever hears of it in time
says so; at that step all ranks count who did. Ranks that take their steps together then come to one
and the same answer, since the last word was left a step earlier; where somebody missed it, rank 0
names another step.
"""

from __future__ import annotations

import json
import sys
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sentinel.client.collective import chunk
from sentinel.transport.ring_layout import RING_VERSION

POLL_INTERVAL_SECONDS = 0.25
"""Seconds between two looks into the store."""
READY_TIMEOUT_SECONDS = 60.0
"""Seconds after which, and looks without which, there is no quorum."""
MIN_POLLS = 8
LEAD_SECONDS = 2.0
"""Seconds that the named step is ahead."""
MAX_ROUNDS = 10
"""Steps that are named until it is given up."""
GATHER_INTERVAL_SECONDS, MAX_INTERVAL_STEPS = 1.0, 10
"""How often is gathered: about once a second, and at least every so many steps."""
_MAX_LISTED_RANKS = 16
"""Ranks that are told by number at most."""


class NotReadyError(Exception):
    """The ranks will not gather; the text says why."""


class GatherSchedule(NamedTuple):
    """From which step (beat) on, every how many, is gathered; and on which node rank 0 is."""

    step_index: int
    interval_steps: int
    head_node_id: int


class ReadinessCheck:
    """One rank's part in the agreement. `word` must be the same on all, `node` names this node.

    `store` is that of torch.distributed.
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
        """Seconds from one beat to the next, lately; 0 while that is not known."""
        self._scheduled_at = (0, 0.0)
        """Beat, and time, at which the step was named to us."""

    def poll(self, step_index: int, now: float) -> GatherSchedule | None:
        """What was agreed, once its step has come. `now` is in seconds of any clock.

        Raises NoQuorum.
        """
        try:
            return self._poll_store(step_index, now)
        except RuntimeError as error:
            # As all errors of stores are, those of a host that is gone as well.
            raise NotReadyError(f"its store does not answer ({type(error).__name__})") from None

    def _poll_store(self, step_index: int, now: float) -> GatherSchedule | None:
        if self._started_at is None:
            self._started_at = now
            self.store.set(f"here/{self.rank}", self.fingerprint)
            self.store.add(f"hello/{self.fingerprint}", 1)
        if self.schedule is not None:
            return self._confirm_when_due(self.schedule, step_index, now)
        if now < self._next_poll_at:
            return None
        # A thousand ranks ask one store.
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
            raise NotReadyError(self._missing_reason("here"))
        return None

    def _update_step_time(self, step_index: int, now: float) -> None:
        before, when = self._last_step
        if when and step_index > before:
            self._seconds_per_step = max(1e-6, (now - when) / (step_index - before))
        self._last_step = step_index, now

    def _propose_schedule(self, step_index: int) -> None:
        if (
            not self._seconds_per_step
            or self.store.add(f"hello/{self.fingerprint}", 0) < self.world_size
        ):
            return
        ahead = (
            4
            if self._seconds_per_step > 2 * POLL_INTERVAL_SECONDS
            else ceil(LEAD_SECONDS / self._seconds_per_step) + 4
        )
        every = min(
            MAX_INTERVAL_STEPS, max(1, int(GATHER_INTERVAL_SECONDS / self._seconds_per_step))
        )
        self.schedule = GatherSchedule(step_index + ahead, every, self.node_id)
        self.store.set(f"start/{self.round_number}", json.dumps(self.schedule))
        self._mark_ready()

    def _poll_proposal(self, step_index: int) -> None:
        key = f"start/{self.round_number}"
        if not self.store.check([key]):
            return
        start = GatherSchedule(*map(int, json.loads(self.store.get(key))))
        if step_index > start.step_index - 2:
            # Too late for this one: others may be counting already.
            self._next_round()
        else:
            self.schedule = start
            self._mark_ready()

    def _mark_ready(self) -> None:
        self.store.set(f"ready/{self.round_number}/{self.rank}", b"1")
        self.store.add(f"ready/{self.round_number}", 1)

    def _confirm_when_due(
        self, schedule: GatherSchedule, step_index: int, now: float
    ) -> GatherSchedule | None:
        """What the ranks came to, at the named step. One that does not come is taken back.

        Steps may turn slow, or beats have leapt when their pace was taken; meanwhile other nodes
        have no agent. Whoever comes to that step later counts too few.
        """
        if step_index >= schedule.step_index:
            return self._count_ready(schedule, step_index)
        since, when = self._scheduled_at
        if now - when > READY_TIMEOUT_SECONDS and step_index - since >= MIN_POLLS:
            self.store.add(f"ready/{self.round_number}", -self.world_size)
            raise NotReadyError("no quorum: the step to begin at did not come in time")
        return None

    def _count_ready(self, schedule: GatherSchedule, step_index: int) -> GatherSchedule | None:
        if self.store.add(f"ready/{self.round_number}", 0) >= self.world_size:
            return schedule._replace(step_index=step_index)
        missing = f"ready/{self.round_number}"
        self._next_round()
        if self.round_number >= MAX_ROUNDS:
            raise NotReadyError(self._missing_reason(missing))
        return None

    def _next_round(self) -> None:
        self.round_number, self.schedule = self.round_number + 1, None

    def _missing_reason(self, where: str) -> str:
        if self.rank:
            return "no quorum"
        others = range(1, self.world_size)
        absent = [rank for rank in others if not self.store.check([f"{where}/{rank}"])]
        if where != "here":
            return f"no quorum: {format_ranks(absent)} did not agree in time"
        if absent:
            return f"no quorum: {format_ranks(absent)} without sentinel, or without the collective"
        return "no quorum: ranks of another version of sentinel"


def join(
    group: Any, run_number: int, rank: int, world_size: int, directory: Path
) -> ReadinessCheck:
    """A rank's part in the agreement of those of the process group.

    `group` is torch.distributed, `number` counts the runs of this process, `directory` is where our
    rings are. Raises NoQuorum.
    """
    return ReadinessCheck(
        _clone_store(group, run_number),
        rank,
        world_size,
        _fingerprint(world_size),
        _node_id(directory),
    )


def _clone_store(group: Any, number: int) -> Any:
    """A connection of our own to the store of the process group, with keys of that run's own."""
    store = group.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way
    if not hasattr(store, "clone"):
        raise NotReadyError("torch 2.8 or newer is needed")
    if not group.is_gloo_available():
        raise NotReadyError("this torch has no gloo")
    try:
        return group.PrefixStore(f"sentinel/{number}", store.clone())
    except RuntimeError as error:
        raise NotReadyError(f"its store cannot be shared ({type(error).__name__})") from None


def _fingerprint(world_size: int) -> str:
    """What must be the same on all ranks."""
    said = (chunk.CHUNK_VERSION, chunk.CHUNK_BYTES, RING_VERSION, sys.byteorder, world_size)
    return f"{crc32(repr(said).encode()):08x}"


def _node_id(directory: Path) -> int:
    """The same number for ranks whose rings are in one directory, which one agent reads."""
    where = directory.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return crc32(repr((boot, where.st_dev, where.st_ino)).encode())


def format_ranks(ranks: list[int]) -> str:
    """Ranks as people read them.

    >>> named([3]), named([1, 3]), named([*range(40)])[-24:]
    ('rank 3', 'ranks 1 and 3', '13, 14, 15 and 24 others')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MAX_LISTED_RANKS:
        first = ", ".join(map(str, ranks[:_MAX_LISTED_RANKS]))
        return f"ranks {first} and {len(ranks) - _MAX_LISTED_RANKS} others"
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}"
