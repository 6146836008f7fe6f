"""Heartbeat of a run's ranks on one node: which of them run, died, failed or lag behind."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.live.rank import LiveRank
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.transport.process import Process

STALLED_AFTER_SECONDS = 2.0
"""Time without a step after which a rank's process is checked for a stop signal."""

FAILED_OUTCOMES = ("exception", "exit")
"""Outcomes of a rank that reported its own failure."""


def build_heartbeat(run: str, ranks: list[LiveRank], now: float) -> Record:
    """The heartbeat of the ranks of one attempt.

    Values: `ranks_running`, `ranks_gone` (died), `ranks_failed` (exception or exit code), and
    `idle_seconds` since any rank advanced a step. Attributes: `state`; the comma-separated ranks
    `died_ranks`, `failed_ranks` and `straggler_ranks`; the stragglers' `straggler_step` and
    `straggler_progress` (step index, and step index of the newest backward pass); `blocked_by` if a
    signal stopped them, `all_behind` if no rank is ahead; and of the first failure `cause` (the
    rank's outcome), `exception` or `code`, and `failed_seconds_ago`.
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
    """The first rank of each process: with `aggregate="collective"` rank 0 writes all rings.

    The state of a process is known for that rank alone.
    """
    first: dict[tuple[Process, int], LiveRank] = {}
    for rank in ranks:
        first.setdefault((rank.header.process, rank.header.identity.attempt), rank)
    return [*first.values()]


def _progress(rank: LiveRank) -> tuple[int, int]:
    """Step index, and step index of the newest backward pass, in which ranks wait for others."""
    return rank.header.last_step_index, rank.header.backward_step_index


def _first_failure_attributes(ranks: list[LiveRank], now: float) -> dict[str, str]:
    """The earliest failure; at equal times a death precedes the errors that it causes."""
    failures = [
        rank for rank in ranks if rank.ended and rank.outcome not in ("finished", UNKNOWN_OUTCOME)
    ]
    if not failures:
        return {}
    first = min(failures, key=lambda rank: (rank.ended_at, rank.outcome != "died"))
    details = {
        key: first.stop_attributes[key]
        for key in ("exception", "code")
        if key in first.stop_attributes
    }
    return {
        "cause": first.outcome,
        "failed_seconds_ago": f"{max(0.0, now - first.ended_at):.3f}",
        **details,
    }


def _straggler_attributes(running: list[LiveRank], now: float) -> dict[str, str]:
    """The running ranks that the others wait for: stopped ones, else those with least progress.

    `all_behind` marks that every rank has the same progress.
    """
    if not running:
        return {}
    stalled = [rank for rank in running if now - rank.last_progress_at >= STALLED_AFTER_SECONDS]
    stopped = [rank for rank in stalled if rank.header.process.is_stopped()]
    lowest = min(map(_progress, running))
    stragglers = stopped or [rank for rank in running if _progress(rank) == lowest]
    slowest = min(stragglers, key=_progress)
    attributes = {
        "straggler_ranks": _rank_list(stragglers),
        "straggler_step": str(slowest.header.last_step),
        "straggler_progress": ",".join(map(str, _progress(slowest))),
    }
    if stopped:
        attributes["blocked_by"] = "signal"
    elif len(stragglers) == len(running):
        attributes["all_behind"] = "yes"
    return attributes


def _run_state(ranks: list[LiveRank]) -> str:
    if not all(rank.ended for rank in ranks):
        return "running" if any(rank.header.last_step_index > 0 for rank in ranks) else "starting"
    outcomes = [rank.outcome for rank in ranks]
    if "died" in outcomes:
        return "died"
    return "failed" if any(o in FAILED_OUTCOMES for o in outcomes) else "finished"


def _rank_list(ranks: list[LiveRank]) -> str:
    return ",".join(str(rank.header.identity.rank) for rank in ranks)
