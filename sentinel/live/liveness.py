"""Heartbeat of a run's ranks on one node: which of them run, died, failed or lag behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sentinel.live.rank import LiveRank
from sentinel.live.stack_sampler import StackSampler
from sentinel.live.suspension import suspended_by
from sentinel.model.rank_end import (
    END_ATTRIBUTES,
    STOP_SIGNAL_KEY,
    RankEnd,
    first_failure,
)
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.process import Process

STALLED_AFTER_SECONDS = 2.0
"""Time without a step after which a rank's process is checked for a stop signal."""

FAILED_OUTCOMES = ("exception", "exit")
"""Outcomes of a rank that reported its own failure."""

FAILURE_ATTRIBUTES = (
    "cause", "end_kind", "culprit_ranks", "following_ranks", "died_ranks", "failed_ranks",
    "stop_requested_by", *END_ATTRIBUTES,
)  # fmt: skip
"""Attributes of a heartbeat that describe the first failure."""

STOP_REQUEST_SECONDS = 120.0
"""How long after a request to stop an end still follows from it: schedulers wait 30 s, up to two
minutes before SIGKILL."""
STOP_REQUEST_DELAY_SECONDS = 0.5
"""A request is recorded by this much later than a rank in the same process group ends."""


class StopRequest(NamedTuple):
    """A signal by which the run was asked to end, and when; `received_by` is who noted it."""

    signal: str
    received_at: float
    received_by: str

    def explains(self, end: RankEnd) -> bool:
        """Whether an end follows from it."""
        since = end.ended_at - self.received_at
        return -STOP_REQUEST_DELAY_SECONDS <= since <= STOP_REQUEST_SECONDS


def build_heartbeat(
    run: str,
    ranks: list[LiveRank],
    now: float,
    *,
    stop_request: StopRequest | None = None,
    stack_sampler: StackSampler | None = None,
) -> Record:
    """The heartbeat of the ranks of one attempt.

    Values: `ranks_running`, `ranks_gone` (died), `ranks_failed` (exception or exit code),
    `idle_seconds` since any rank advanced a step, and `inactive_seconds` since any sign of life, of
    the suspended ranks if some are. Attributes, lists of ranks with commas:

    - `state`; `died_ranks`, `failed_ranks`; `activity`, what running ranks do outside steps; those
      of `stack_sampler`;
    - `straggler_ranks`, their `straggler_step` and `straggler_progress` (step index, and step index
      of the newest backward pass); `all_behind` if no rank is ahead; and if some are suspended,
      `blocked_by` (signal, or debugger or freezer if all of them are held by one) and
      `suspended_processes` ("rank:pid:host");
    - of the first failure, as `first_failure` finds it: `cause` (died, exception, exit, interrupted
      or stopped: asked to end), `end_kind` (own, aborted, stopped or consequence),
      `culprit_ranks`, `following_ranks`, `failed_seconds_ago`, `stop_requested_by` if that is
      known, and what is known of END_ATTRIBUTES: `exception` (class), `message` (first line, cut,
      without secrets), `location` ("train.py:88 in train_step"), `caused_by`, `code`, `signal`
      (name), `oom_kill`, `memory_limit`.
    """
    running = [r for r in ranks if not r.ended]
    # Of a rank whose client is disabled nothing is known: it hides no stall of the others.
    observed = [r for r in ranks if not r.is_disabled] or ranks
    died = [r for r in ranks if r.outcome == "died"]
    gone = [
        *(r for r in died if r.is_lost_peer),
        *ranks_with_own_process(r for r in died if not r.is_lost_peer),
    ]
    failed = [r for r in ranks if r.outcome in FAILED_OUTCOMES]
    ends = [r.end for r in ranks if r.ended and (r.outcome != "died" or r in gone)]
    failure = failure_attributes(_with_stop_request(ends, stop_request), now)
    if failure.get("cause") == "stopped" and stop_request is not None:
        failure["stop_requested_by"] = stop_request.received_by
    newest = max(ranks, key=lambda r: r.header.last_step_index).header
    suspended = _suspended_ranks(ranks_with_own_process(running), now)
    sampler = stack_sampler or StackSampler()
    activities = {rank.header.activity for rank in running} | sampler.activities()
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
            "idle_seconds": max(0.0, now - max(r.last_progress_at for r in observed)),
            "inactive_seconds": max(
                0.0, now - max(r.last_sign_of_life_at for r in suspended or observed)
            ),
        },
        attributes={
            "state": _run_state(ranks, failure.get("cause", "")),
            "died_ranks": _rank_list(gone),
            "failed_ranks": _rank_list(failed),
            **failure,
            **_straggler_attributes(
                ranks_with_own_process(r for r in observed if not r.ended), suspended
            ),
            "activity": ",".join(sorted(activities - {""})),
            **sampler.attributes(),
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


def failure_attributes(
    ends: Sequence[RankEnd], now: float, clock_error_seconds: float = 0.0
) -> dict[str, str]:
    """Those of `FAILURE_ATTRIBUTES` that follow from the ends of ranks, and `failed_seconds_ago`.

    Empty if no rank failed.
    """
    causes, followers = first_failure(ends, clock_error_seconds)
    if not causes:
        return {}
    first = causes[0]
    known: Mapping[str, str] = first.attributes
    details = {name: known[name] for name in END_ATTRIBUTES if name in known}
    if STOP_SIGNAL_KEY in known:
        details["signal"] = known[STOP_SIGNAL_KEY]
    return {
        "cause": first.outcome,
        "end_kind": first.kind.name.lower(),
        "culprit_ranks": _join_ranks(causes),
        "following_ranks": _join_ranks(followers),
        "failed_seconds_ago": f"{max(0.0, now - first.ended_at):.3f}",
        **details,
    }


def _join_ranks(ends: Iterable[RankEnd]) -> str:
    return ",".join(map(str, sorted({rank for each in ends for rank in each.ranks})))


def _with_stop_request(ends: list[RankEnd], request: StopRequest | None) -> list[RankEnd]:
    """The ends, those that follow from the request marked with its signal."""
    if request is None:
        return ends
    return [
        replace(each, attributes={**each.attributes, STOP_SIGNAL_KEY: request.signal})
        if request.explains(each)
        else each
        for each in ends
    ]


def _suspended_ranks(running: list[LiveRank], now: float) -> list[LiveRank]:
    """The ranks without a step for a while whose process something holds."""
    stalled = [rank for rank in running if now - rank.last_progress_at >= STALLED_AFTER_SECONDS]
    return [rank for rank in stalled if suspended_by(rank.header.process)]


def _straggler_attributes(running: list[LiveRank], suspended: list[LiveRank]) -> dict[str, str]:
    """The running ranks that the others wait for: suspended ones, else those with least progress.

    `all_behind` marks that every rank has the same progress.
    """
    if not running:
        return {}
    lowest = min(map(_progress, running))
    stragglers = suspended or [rank for rank in running if _progress(rank) == lowest]
    slowest = min(stragglers, key=_progress)
    attributes = {
        "straggler_ranks": _rank_list(stragglers),
        "straggler_step": str(slowest.header.last_step),
        "straggler_progress": ",".join(map(str, _progress(slowest))),
    }
    if suspended:
        holders = {suspended_by(rank.header.process) for rank in suspended} - {""}
        attributes["blocked_by"] = holders.pop() if len(holders) == 1 else "signal"
        attributes["suspended_processes"] = ",".join(
            f"{rank.header.identity.rank}:{rank.header.process.pid}:{rank.header.identity.host}"
            for rank in suspended
        )
    elif len(stragglers) == len(running):
        attributes["all_behind"] = "yes"
    return attributes


def _run_state(ranks: list[LiveRank], cause: str) -> str:
    if not all(rank.ended and not rank.has_unread for rank in ranks):
        return "running" if any(rank.header.last_step_index > 0 for rank in ranks) else "starting"
    return ended_state(cause)


def ended_state(cause: str) -> str:
    """The state of a run whose ranks have all ended, by the `cause` of its first failure."""
    if cause in ("died", "stopped"):
        return "died"
    return "failed" if cause in FAILED_OUTCOMES else "finished"


def _rank_list(ranks: list[LiveRank]) -> str:
    return ",".join(str(rank.header.identity.rank) for rank in ranks)
