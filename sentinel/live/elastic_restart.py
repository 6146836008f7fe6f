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

from sentinel.live.liveness import Rank
from sentinel.model.record import Record
from sentinel.transport.process import Process

WAIT_SECONDS = 90.0
"""How long the next ranks are waited for: nodes wait 30 s for each other, and imports take time."""
LEAVING_SECONDS = 35.0
"""Within which the ranks that a launcher ends are all gone: it asks, and kills 30 s later whoever
is still letting go of its GPU."""
LAST_STEP_SECONDS = 1.0
"""Who is still seen to take a step so long after the first rank went is not leaving."""
TOLD_SECONDS = 10.0
"""How long it is told, once the next ranks are there, that those before them had failed."""
RESTARTS, NODES = "TORCHELASTIC_RESTART_COUNT", "PET_NNODES"

Sender = tuple[int, int]
"""Attempt and rank."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What is known of a rank of an elastic launcher: that, and how often it had begun anew."""

    launcher: Process
    restarts: int


@dataclass
class Regrouping:
    """The ranks of one node; `final` is whether nobody will look on any longer."""

    final: bool = False
    waiting: bool = False
    """Whether ranks are gone that may yet come back."""
    workers: dict[Sender, Worker] = field(default_factory=dict)
    _gone: Record | None = None
    """The TICK that told of them."""
    _restarts: int = 0
    _back_at: float = 0.0

    def meet(self, rank: Rank) -> None:
        """A rank was seen for the first time."""
        who, process = rank.header.identity, rank.header.process
        worker = _worker(process) if process.alive() else None
        if worker is None:
            return
        self.workers[who.attempt, who.rank] = worker
        for old in [each for each in self.workers if each[0] < who.attempt - 1]:
            del self.workers[old]

    def told_of(self, tick: Record, ranks: Sequence[Rank], now: float) -> Record:
        """The TICK of these ranks, of the newest attempt, with the fact `regroup` where they may
        come back; or with the death of those before them, where that was a failure.
        """
        workers = [self._of(rank) for rank in ranks]
        known = [worker for worker in workers if worker is not None]
        before = self._gone
        if before is not None and tick.attempt > before.attempt:
            self.waiting, self._back_at = False, self._back_at or now
            failed = any(worker.restarts > self._restarts for worker in known)
            if failed and now - self._back_at < TOLD_SECONDS:
                return _with_death(tick, before, now - self._back_at)
            self._gone, self._back_at = None, 0.0
        self.waiting = (
            not self.final
            and len(known) == len(workers)
            and _fall_together(ranks, now)
            and all(worker.launcher.alive() for worker in known)
        )
        if not self.waiting:
            self._gone = None
            return tick
        self._gone, self._restarts = tick, max(worker.restarts for worker in known)
        return replace(tick, facts={**tick.facts, "regroup": "yes"})

    def _of(self, rank: Rank) -> Worker | None:
        who = rank.header.identity
        return self.workers.get((who.attempt, who.rank))


def is_elastic(words: Sequence[str]) -> bool:
    """Whether that command line lets nodes come and leave.

    >>> is_elastic(["torchrun", "--nnodes", "1:4", "train.py"]), is_elastic(["--nnodes=2:2"])
    (True, False)
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, given = word.partition("=")
        if name in ("--nnodes", NODES):
            least, _, most = (given or following).partition(":")
            return most.isdecimal() and least != most
    return False


def _worker(process: Process) -> Worker | None:
    launcher = process.parent()
    if launcher is None:
        return None
    told = dict(word.partition("=")[::2] for word in _words(process.pid, "environ"))
    count, nodes = told.get(RESTARTS, ""), f"{NODES}={told.get(NODES, '')}"
    elastic = is_elastic([*_words(launcher.pid, "cmdline"), nodes])
    return Worker(launcher, int(count)) if elastic and count.isdecimal() else None


def _words(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _fall_together(ranks: Sequence[Rank], now: float) -> bool:
    """Whether some are gone without a word, not long ago, and the rest went or is leaving."""
    gone = [rank.ended_at for rank in ranks if rank.outcome == "died" and not rank.stop]
    left = [rank for rank in ranks if not rank.ended]
    if not gone or len(gone) + len(left) < len(ranks):
        return False
    first, last = min(gone), now if left else max(gone)
    leaving = all(rank.moved <= first + LAST_STEP_SECONDS for rank in left)
    return leaving and last - first <= LEAVING_SECONDS and now - first < WAIT_SECONDS


def _with_death(tick: Record, before: Record, ago: float) -> Record:
    fell = {name: before.facts[name] for name in ("cause", "gone")}
    values = {**tick.values, "ranks_gone": before.values["ranks_gone"]}
    facts = {**tick.facts, **fell, "fell_ago": f"{ago:.3f}"}
    return replace(tick, step=before.step, values=values, facts=facts)
