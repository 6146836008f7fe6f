"""Roll call: who of a run's ranks is there, who is not, and who is behind the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.process import Process
from sentinel.transport.record_codec import Unpacker
from sentinel.transport.ring import Cursor, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, UNKNOWN, Header

STILL_SECONDS = 2.0
"""Seconds without a step after which a rank's process is looked at more closely."""

FAILURES = ("exception", "exit")
"""Outcomes by which a rank ended badly, by its own word."""


@dataclass
class Rank:
    """One rank's ring being read, and what is known of its process.

    `moved` is when it was last seen to take a step, by our clock: theirs may be set at any time.
    """

    reader: RingReader
    unpacker: Unpacker
    cursor: Cursor
    header: Header
    moved: float
    outcome: str = ""
    ended_at: float = 0.0
    stop: Mapping[str, str] = field(default_factory=dict)
    reported: tuple[int, ...] = (0,) * len(DROP_REASONS)

    @property
    def ended(self) -> bool:
        return bool(self.outcome)


def roll_call(run: str, ranks: list[Rank], now: float) -> Record:
    """What a TICK says of the ranks of one attempt.

    Values: `ranks_running`, `ranks_gone` (died), `ranks_failed` (exception or exit code), and
    `idle_seconds` since any rank last moved a step. Facts: `state`; the ranks `gone`, `failed`
    and `behind` as comma-separated numbers, how far the latter got as `behind_step` and
    `behind_at` (steps taken, and the step whose backward pass began), and `held` where a signal
    stops them; `cause`, the outcome of the rank that fell first, with what it said of it, and
    `fell_ago`, the seconds since.
    """
    running = [r for r in ranks if not r.ended]
    died = [r for r in ranks if r.outcome == "died"]
    gone = [*(r for r in died if r.stop), *firsthand(r for r in died if not r.stop)]
    failed = [r for r in ranks if r.outcome in FAILURES]
    newest = max(ranks, key=lambda r: r.header.last_beat).header
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=newest.last_step,
        time=now,
        event=Event.TICK,
        values={
            "ranks_running": float(len(running)),
            "ranks_gone": float(len(gone)),
            "ranks_failed": float(len(failed)),
            "idle_seconds": max(0.0, now - max(r.moved for r in ranks)),
        },
        facts={
            "state": _state(ranks),
            "gone": _numbers(gone),
            "failed": _numbers(failed),
            **_cause(ranks, now),
            **_stragglers(firsthand(running), now),
        },
        attempt=newest.identity.attempt,
        beat=newest.last_beat,
    )


def firsthand(ranks: Iterable[Rank]) -> list[Rank]:
    """The ranks that write their own rings: those of a collective are written by rank 0 as well.

    What is known of its process is known of it alone.
    """
    first: dict[tuple[Process, int], Rank] = {}
    for rank in ranks:
        first.setdefault((rank.header.process, rank.header.identity.attempt), rank)
    return [*first.values()]


def _reached(rank: Rank) -> tuple[int, int]:
    """How far a rank got: under data parallelism the others wait for it inside a backward pass."""
    return rank.header.last_beat, rank.header.begun


def _cause(ranks: list[Rank], now: float) -> dict[str, str]:
    """The first to fall; noticed together, a death comes before the errors it causes."""
    fallen = [rank for rank in ranks if rank.ended and rank.outcome not in ("finished", UNKNOWN)]
    if not fallen:
        return {}
    first = min(fallen, key=lambda rank: (rank.ended_at, rank.outcome != "died"))
    known = {key: first.stop[key] for key in ("exception", "code") if key in first.stop}
    return {"cause": first.outcome, "fell_ago": f"{max(0.0, now - first.ended_at):.3f}", **known}


def _stragglers(running: list[Rank], now: float) -> dict[str, str]:
    """Running ranks that hold the others: stopped ones, else those that got least far.

    Where none is ahead, all are behind, and `everyone` says so.
    """
    if not running:
        return {}
    still = [rank for rank in running if now - rank.moved >= STILL_SECONDS]
    stopped = [rank for rank in still if rank.header.process.stopped()]
    lowest = min(map(_reached, running))
    behind = stopped or [rank for rank in running if _reached(rank) == lowest]
    least = min(behind, key=_reached)
    facts = {
        "behind": _numbers(behind),
        "behind_step": str(least.header.last_step),
        "behind_at": ",".join(map(str, _reached(least))),
    }
    if stopped:
        facts["held"] = "stopped"
    elif len(behind) == len(running):
        facts["everyone"] = "yes"
    return facts


def _state(ranks: list[Rank]) -> str:
    if not all(rank.ended for rank in ranks):
        return "running" if any(rank.header.last_beat > 0 for rank in ranks) else "starting"
    outcomes = [rank.outcome for rank in ranks]
    if "died" in outcomes:
        return "died"
    return "failed" if any(o in FAILURES for o in outcomes) else "finished"


def _numbers(ranks: list[Rank]) -> str:
    return ",".join(str(rank.header.identity.rank) for rank in ranks)
