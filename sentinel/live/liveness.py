"""Roll call: who of a run's ranks is there, who is not, and who is behind the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.transport.process import Process
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, RingHeader

STALLED_AFTER_SECONDS = 2.0
"""Seconds without a step after which a rank's process is looked at more closely."""

FAILED_OUTCOMES = ("exception", "exit")
"""Outcomes by which a rank ended badly, by its own word."""


@dataclass
class LiveRank:
    """One rank's ring being read, and what is known of its process.

    `moved` is when it was last seen to take a step, by our clock: theirs may be set at any time.
    """

    reader: RingReader
    unpacker: RecordDecoder
    cursor: RingCursor
    header: RingHeader
    last_progress_at: float
    outcome: str = ""
    ended_at: float = 0.0
    stop_attributes: Mapping[str, str] = field(default_factory=dict)
    reported_drops: tuple[int, ...] = (0,) * len(DROP_REASONS)

    @property
    def ended(self) -> bool:
        return bool(self.outcome)


def build_heartbeat(run: str, ranks: list[LiveRank], now: float) -> Record:
    """What a TICK says of the ranks of one attempt.

    Values: `ranks_running`, `ranks_gone` (died), `ranks_failed` (exception or exit code), and
    `idle_seconds` since any rank last moved a step. Facts: `state`; the ranks `died_ranks`, `failed_ranks`
    and `straggler_ranks` as comma-separated numbers, how far the latter got as `straggler_step` and
    `straggler_progress` (steps taken, and the step whose backward pass began), and `blocked_by` where a signal
    stops them; `cause`, the outcome of the rank that fell first, with what it said of it, and
    `failed_seconds_ago`, the seconds since.
    """
    running = [r for r in ranks if not r.ended]
    died = [r for r in ranks if r.outcome == "died"]
    gone = [
        *(r for r in died if r.stop_attributes),
        *ranks_with_own_process(r for r in died if not r.stop_attributes),
    ]
    failed = [r for r in ranks if r.outcome in FAILED_OUTCOMES]
    newest = max(ranks, key=lambda r: r.header.last_step_index).header
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=newest.last_step,
        time=now,
        event=Event.HEARTBEAT,
        values={
            "ranks_running": float(len(running)),
            "ranks_gone": float(len(gone)),
            "ranks_failed": float(len(failed)),
            "idle_seconds": max(0.0, now - max(r.last_progress_at for r in ranks)),
        },
        attributes={
            "state": _run_state(ranks),
            "died_ranks": _rank_list(gone),
            "failed_ranks": _rank_list(failed),
            **_first_failure_attributes(ranks, now),
            **_straggler_attributes(ranks_with_own_process(running), now),
        },
        attempt=newest.identity.attempt,
        step_index=newest.last_step_index,
    )


def ranks_with_own_process(ranks: Iterable[LiveRank]) -> list[LiveRank]:
    """The ranks that write their own rings: those of a collective are written by rank 0 as well.

    What is known of its process is known of it alone.
    """
    first: dict[tuple[Process, int], LiveRank] = {}
    for rank in ranks:
        first.setdefault((rank.header.process, rank.header.identity.attempt), rank)
    return [*first.values()]


def _progress(rank: LiveRank) -> tuple[int, int]:
    """How far a rank got: under data parallelism the others wait for it inside a backward pass."""
    return rank.header.last_step_index, rank.header.backward_step_index


def _first_failure_attributes(ranks: list[LiveRank], now: float) -> dict[str, str]:
    """The first to fall; noticed together, a death comes before the errors it causes."""
    fallen = [
        rank for rank in ranks if rank.ended and rank.outcome not in ("finished", UNKNOWN_OUTCOME)
    ]
    if not fallen:
        return {}
    first = min(fallen, key=lambda rank: (rank.ended_at, rank.outcome != "died"))
    known = {
        key: first.stop_attributes[key]
        for key in ("exception", "code")
        if key in first.stop_attributes
    }
    return {
        "cause": first.outcome,
        "failed_seconds_ago": f"{max(0.0, now - first.ended_at):.3f}",
        **known,
    }


def _straggler_attributes(running: list[LiveRank], now: float) -> dict[str, str]:
    """Running ranks that hold the others: stopped ones, else those that got least far.

    Where none is ahead, all are behind, and `all_behind` says so.
    """
    if not running:
        return {}
    still = [rank for rank in running if now - rank.last_progress_at >= STALLED_AFTER_SECONDS]
    stopped = [rank for rank in still if rank.header.process.is_stopped()]
    lowest = min(map(_progress, running))
    behind = stopped or [rank for rank in running if _progress(rank) == lowest]
    least = min(behind, key=_progress)
    facts = {
        "straggler_ranks": _rank_list(behind),
        "straggler_step": str(least.header.last_step),
        "straggler_progress": ",".join(map(str, _progress(least))),
    }
    if stopped:
        facts["blocked_by"] = "signal"
    elif len(behind) == len(running):
        facts["all_behind"] = "yes"
    return facts


def _run_state(ranks: list[LiveRank]) -> str:
    if not all(rank.ended for rank in ranks):
        return "running" if any(rank.header.last_step_index > 0 for rank in ranks) else "starting"
    outcomes = [rank.outcome for rank in ranks]
    if "died" in outcomes:
        return "died"
    return "failed" if any(o in FAILED_OUTCOMES for o in outcomes) else "finished"


def _rank_list(ranks: list[LiveRank]) -> str:
    return ",".join(str(rank.header.identity.rank) for rank in ranks)
