"""Regrouping: whether ranks that are gone were ended by a launcher that begins them again.

When nodes come or leave, torchrun with `--nnodes MIN:MAX` ends all ranks by a signal, and begins
them anew once the nodes have found each other. To whoever looks on it is a death of all ranks, the
last of them seconds after the first, with a launcher that lives. What it was is told by the count
of restarts that the next ranks are given: a failure adds to it, nodes that come or leave do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.live.liveness import LiveRank
from sentinel.model.record import Record
from sentinel.transport.process import Process

RESTART_WAIT_SECONDS = 90.0
"""How long the next ranks are waited for: nodes wait 30 s for each other, and imports take time."""
MAX_EXIT_SPREAD_SECONDS = 35.0
"""Within which the ranks that a launcher ends are all gone: it asks, and kills 30 s later whoever
is still letting go of its GPU."""
LAST_STEP_GRACE_SECONDS = 1.0
"""Who is still seen to take a step so long after the first rank went is not leaving."""
REPORT_FAILURE_SECONDS = 10.0
"""How long it is told, once the next ranks are there, that those before them had failed."""
RESTART_COUNT_VARIABLE, NNODES_VARIABLE = "TORCHELASTIC_RESTART_COUNT", "PET_NNODES"

RankKey = tuple[int, int]
"""Attempt and rank."""


@dataclass(frozen=True, slots=True)
class ElasticWorker:
    """What is known of a rank of an elastic launcher: that, and how often it had begun anew."""

    launcher: Process
    restart_count: int


@dataclass
class ElasticRestartTracker:
    """The ranks of one node; `final` is whether nobody will look on any longer."""

    is_shutting_down: bool = False
    awaiting_restart: bool = False
    """Whether ranks are gone that may yet come back."""
    workers: dict[RankKey, ElasticWorker] = field(default_factory=dict)
    _exit_heartbeat: Record | None = None
    """The TICK that told of them."""
    _last_restart_count: int = 0
    _restarted_at: float = 0.0

    def add_rank(self, rank: LiveRank) -> None:
        """A rank was seen for the first time."""
        who, process = rank.header.identity, rank.header.process
        worker = _elastic_worker(process) if process.is_alive() else None
        if worker is None:
            return
        self.workers[who.attempt, who.rank] = worker
        for old in [each for each in self.workers if each[0] < who.attempt - 1]:
            del self.workers[old]

    def annotate_heartbeat(
        self, heartbeat: Record, ranks: Sequence[LiveRank], now: float
    ) -> Record:
        """The TICK of these ranks, of the newest attempt, with the fact `elastic_restart` where they may
        come back; or with the death of those before them, where that was a failure.
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
        self._exit_heartbeat, self._last_restart_count = (
            heartbeat,
            max(worker.restart_count for worker in known),
        )
        return replace(heartbeat, attributes={**heartbeat.attributes, "elastic_restart": "yes"})

    def _find_worker(self, rank: LiveRank) -> ElasticWorker | None:
        who = rank.header.identity
        return self.workers.get((who.attempt, who.rank))


def is_elastic(arguments: Sequence[str]) -> bool:
    """Whether that command line lets nodes come and leave.

    >>> is_elastic(["torchrun", "--nnodes", "1:4", "train.py"]), is_elastic(["--nnodes=2:2"])
    (True, False)
    """
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, given = word.partition("=")
        if name in ("--nnodes", NNODES_VARIABLE):
            least, _, most = (given or following).partition(":")
            return most.isdecimal() and least != most
    return False


def _elastic_worker(process: Process) -> ElasticWorker | None:
    launcher = process.parent()
    if launcher is None:
        return None
    told = dict(word.partition("=")[::2] for word in _read_proc_strings(process.pid, "environ"))
    count, nodes = (
        told.get(RESTART_COUNT_VARIABLE, ""),
        f"{NNODES_VARIABLE}={told.get(NNODES_VARIABLE, '')}",
    )
    elastic = is_elastic([*_read_proc_strings(launcher.pid, "cmdline"), nodes])
    return ElasticWorker(launcher, int(count)) if elastic and count.isdecimal() else None


def _read_proc_strings(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _exited_together(ranks: Sequence[LiveRank], now: float) -> bool:
    """Whether some are gone without a word, not long ago, and the rest went or is leaving."""
    gone = [rank.ended_at for rank in ranks if rank.outcome == "died" and not rank.stop_attributes]
    left = [rank for rank in ranks if not rank.ended]
    if not gone or len(gone) + len(left) < len(ranks):
        return False
    first, last = min(gone), now if left else max(gone)
    leaving = all(rank.last_progress_at <= first + LAST_STEP_GRACE_SECONDS for rank in left)
    return (
        leaving and last - first <= MAX_EXIT_SPREAD_SECONDS and now - first < RESTART_WAIT_SECONDS
    )


def _with_failure(heartbeat: Record, before: Record, seconds_ago: float) -> Record:
    fell = {name: before.attributes[name] for name in ("cause", "died_ranks")}
    values = {**heartbeat.values, "ranks_gone": before.values["ranks_gone"]}
    facts = {**heartbeat.attributes, **fell, "failed_seconds_ago": f"{seconds_ago:.3f}"}
    return replace(heartbeat, step=before.step, values=values, attributes=facts)
