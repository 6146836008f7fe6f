"""Detects restarts by an elastic launcher, so that they are not reported as failures.

When nodes join or leave, torchrun with `--nnodes MIN:MAX` ends all ranks by a signal and starts
them again after a new rendezvous. To an observer all ranks die, the last one seconds after the
first, while their launcher stays alive. The restart count in the next ranks' environment makes the
difference: a failure increments it, a membership change does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sentinel.live.liveness import FAILURE_ATTRIBUTES
from sentinel.live.rank import LiveRank
from sentinel.model.record import Record
from sentinel.transport.process import Process, read_arguments, read_environ

RESTART_WAIT_SECONDS = 90.0
"""How long to wait for the next ranks: nodes wait 30 s for each other, and imports take time."""
MAX_EXIT_SPREAD_SECONDS = 35.0
"""Time in which a launcher's ranks all exit: it sends SIGTERM, and SIGKILL 30 s later to those that
still release their GPU."""
LAST_STEP_GRACE_SECONDS = 1.0
"""A rank that still takes steps this long after the first exit is not being ended."""
REPORT_FAILURE_SECONDS = 10.0
"""How long a failure is reported once the ranks of the next attempt are there."""
RESTART_COUNT_VARIABLE, NNODES_VARIABLE = "TORCHELASTIC_RESTART_COUNT", "PET_NNODES"

RankKey = tuple[int, int]
"""Attempt and rank."""


class ElasticWorker(NamedTuple):
    """A rank's elastic launcher, and the launcher's restart count when the rank started."""

    launcher: Process
    restart_count: int


@dataclass
class ElasticRestartTracker:
    """Tracks the ranks of one node; `is_shutting_down` is whether the agent is about to exit."""

    is_shutting_down: bool = False
    awaiting_restart: bool = False
    """Whether ranks exited that the launcher may start again."""
    workers: dict[RankKey, ElasticWorker] = field(default_factory=dict)
    _exit_heartbeat: Record | None = None
    """The heartbeat that reported their exit."""
    _last_restart_count: int = 0
    _restarted_at: float = 0.0

    def add_rank(self, rank: LiveRank) -> None:
        """Add a rank that was just discovered."""
        identity, process = rank.header.identity, rank.header.process
        worker = _elastic_worker(process) if process.is_alive() else None
        if worker is None:
            return
        self.workers[identity.attempt, identity.rank] = worker
        for old in [key for key in self.workers if key[0] < identity.attempt - 1]:
            del self.workers[old]

    def annotate_heartbeat(
        self, heartbeat: Record, ranks: Sequence[LiveRank], now: float
    ) -> Record:
        """The heartbeat of the newest attempt's ranks, with what is known of a restart.

        The attribute `elastic_restart` marks exited ranks that may be started again. After a
        restart that followed a failure, the heartbeat reports the death of the earlier ranks.
        """
        workers = [self._find_worker(rank) for rank in ranks]
        known = [worker for worker in workers if worker is not None]
        before = self._exit_heartbeat
        if before is not None and heartbeat.attempt > before.attempt:
            self.awaiting_restart, self._restarted_at = False, self._restarted_at or now
            failed = any(worker.restart_count > self._last_restart_count for worker in known)
            if failed and now - self._restarted_at < REPORT_FAILURE_SECONDS:
                return _with_failure(heartbeat, before, now - self._restarted_at)
            self._exit_heartbeat, self._restarted_at = None, 0.0
        self.awaiting_restart = (
            not self.is_shutting_down
            and len(known) == len(workers)
            and _exited_together(ranks, now)
            and all(worker.launcher.is_alive() for worker in known)
        )
        if not self.awaiting_restart:
            self._exit_heartbeat = None
            return heartbeat
        self._exit_heartbeat = heartbeat
        self._last_restart_count = max(worker.restart_count for worker in known)
        return replace(heartbeat, attributes={**heartbeat.attributes, "elastic_restart": "yes"})

    def _find_worker(self, rank: LiveRank) -> ElasticWorker | None:
        identity = rank.header.identity
        return self.workers.get((identity.attempt, identity.rank))


def is_elastic(arguments: Sequence[str]) -> bool:
    """Whether a launcher with that command line lets nodes join and leave.

    >>> is_elastic(["torchrun", "--nnodes", "1:4", "train.py"]), is_elastic(["--nnodes=2:2"])
    (True, False)
    """
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = argument.partition("=")
        if name in ("--nnodes", NNODES_VARIABLE):
            minimum, _, maximum = (value or following).partition(":")
            return maximum.isdecimal() and minimum != maximum
    return False


def _elastic_worker(process: Process) -> ElasticWorker | None:
    launcher = process.parent()
    if launcher is None:
        return None
    environ = read_environ(process.pid)
    count = environ.get(RESTART_COUNT_VARIABLE, "")
    nodes = f"{NNODES_VARIABLE}={environ.get(NNODES_VARIABLE, '')}"
    elastic = is_elastic([*read_arguments(launcher.pid), nodes])
    return ElasticWorker(launcher, int(count)) if elastic and count.isdecimal() else None


def _exited_together(ranks: Sequence[LiveRank], now: float) -> bool:
    """Whether some ranks died recently without a STOP, and the rest died too or stopped moving."""
    exits = [rank.ended_at for rank in ranks if rank.outcome == "died" and not rank.is_lost_peer]
    remaining = [rank for rank in ranks if not rank.ended]
    if not exits or len(exits) + len(remaining) < len(ranks):
        return False
    first, last = min(exits), now if remaining else max(exits)
    no_progress = all(
        rank.last_progress_at <= first + LAST_STEP_GRACE_SECONDS for rank in remaining
    )
    return (
        no_progress
        and last - first <= MAX_EXIT_SPREAD_SECONDS
        and now - first < RESTART_WAIT_SECONDS
    )


def _with_failure(heartbeat: Record, before: Record, seconds_ago: float) -> Record:
    failure = {
        name: before.attributes[name] for name in FAILURE_ATTRIBUTES if name in before.attributes
    }
    failure["failed_seconds_ago"] = f"{seconds_ago:.3f}"
    return replace(
        heartbeat,
        step=before.step,
        values={**heartbeat.values, "ranks_gone": before.values["ranks_gone"]},
        attributes={**heartbeat.attributes, **failure},
    )
