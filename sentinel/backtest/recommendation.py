"""Chooses settings that keep within a budget of false notifications, if the runs suffice for that.

A run is judged if the user calls it healthy, or has marked each of its cases: its notifications are
false but for those of cases that were useful. Settings are within the budget if the upper limit of
their rate of false notifications is, at a confidence of 95 %, by their number and the days that the
judged runs trained. Of those, the settings are chosen that find the most faults, then those that
find them earliest (in hundredths of a run, on average), then those with the fewest false
notifications. Faults are the useful cases, and, if the user names healthy runs, one in each other
run that is not judged: else nothing is known of a run without marks. The choice from
all runs but one is measured on the one that is left out, for each: what a choice from the past
sends in a run that it has not seen.

Source
    The limits: sentinel.stats.poisson_limits. They assume that false notifications are independent;
    where many come from few runs, the true interval is wider.
    Leave-one-out: M. Stone, Cross-validatory choice and assessment of statistical predictions,
    Journal of the Royal Statistical Society B 36 (1974), 111-147.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import NamedTuple

from sentinel.backtest.backtest import Backtest, BacktestRun
from sentinel.stats.poisson_limits import needed_exposure, two_sided_limits, upper_limit

CONFIDENCE = 0.95
MIN_JUDGED_RUNS = 2
"""Without another judged run, a choice cannot be measured on one that is left out."""
MIN_DAYS = 1e-9


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of events in some days, and the limits of the rate at 95 %."""

    count: int
    days: float

    @property
    def per_day(self) -> float:
        """Events per day."""
        return self.count / max(self.days, MIN_DAYS)

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest rate that agree with the number."""
        low, high = two_sided_limits(self.count, CONFIDENCE)
        days = max(self.days, MIN_DAYS)
        return low / days, high / days

    def is_within(self, budget: float) -> bool:
        """Whether the upper limit of the rate is at most `budget`."""
        expected = budget * self.days
        # The limit is above the number: most settings need none.
        return self.count < expected and upper_limit(self.count, CONFIDENCE) <= expected


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the choices from all runs but one gave in the runs that were left out.

    `found` of the `faults` were notified. `lost` are the names of the runs of which the current
    settings find more faults. `choices` are the numbers of the variants that were chosen without
    each of the runs: without `undecided` of them no settings are within the budget, and the current
    ones stay.
    """

    false: Rate
    faults: int
    found: int
    lost: tuple[str, ...]
    choices: tuple[int, ...]
    undecided: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The number of the variant to use, or None, and the `reason`.

    `needed_days` and `needed_runs` are how much healthy training is needed in total before a choice
    is possible; None if that is enough, or if more would not help.
    """

    variant: int | None
    reason: str
    left_out: LeftOut | None = None
    needed_days: float | None = None
    needed_runs: int | None = None


def false_rate(runs: Sequence[BacktestRun], variant: int) -> Rate:
    """The false notifications of a variant: those of judged runs whose duration is known."""
    timed = [run for run in runs if run.is_judged and run.days > 0]
    count = sum(len(run.false_notifications(variant)) for run in timed)
    return Rate(count, sum(run.days for run in timed))


def found_and_faults(runs: Sequence[BacktestRun], variant: int) -> tuple[int, int]:
    """How many faults a variant finds, and how many there are."""
    return sum(run.found_count(variant) for run in runs), sum(len(run.faults) for run in runs)


def recommend(backtest: Backtest, budget: float) -> Recommendation:
    """Choose one of the variants. `budget` is in false notifications per day and run."""
    runs, variants = backtest.runs, range(len(backtest.variants))
    judged = [run for run in runs if run.is_judged]
    if not judged:
        needed = needed_exposure(0, 0.0, budget, CONFIDENCE)
        return Recommendation(
            None,
            "Name the healthy runs with --healthy, or mark the cases of runs with `sentinel "
            "feedback`: else it is not known which notifications are false. For a budget of "
            f"{budget:g}, {needed:.3g} days of training are needed.",
            needed_days=needed,
        )
    timed = [run for run in judged if run.days > 0]
    if not timed:
        reason = "The judged runs have no times: give the duration of a step with --step-seconds."
        return Recommendation(None, reason)
    by_run = [[_score(run, each) for each in variants] for run in runs]
    totals = [*map(_total, zip(*by_run, strict=True))]
    chosen = _choose(totals, budget)
    if chosen is None or len(timed) < MIN_JUDGED_RUNS:
        return _refuse(timed, variants, budget)
    if totals[0].found and not totals[chosen].found:
        return Recommendation(
            None,
            f"The settings within the budget of {budget:g} find no fault. The current ones find "
            f"{_found_text(totals[0])}, with {_number(totals[0].rate.per_day)} false notifications "
            "per run day.",
        )
    left_out = _leave_one_out([run.name for run in runs], by_run, totals, budget)
    if left_out.false.per_day > budget:
        return _refuse_left_out(left_out, len(timed))
    reason = _reason(totals[0], totals[chosen], budget)
    if len(timed) < len(judged):
        reason += (
            f" {_counted(len(judged) - len(timed), 'judged run')} without times left out of these "
            "numbers: give the duration of a step with --step-seconds."
        )
    return Recommendation(chosen, reason, left_out)


class _Score(NamedTuple):
    """What a variant gives in a run, or in several.

    `rate` is that of its false notifications; `delay` adds up the shares of `found_after`.
    """

    rate: Rate
    found: int
    faults: int
    delay: float

    def without(self, run: _Score) -> _Score:
        """What it gives in the runs other than that one."""
        rate = Rate(self.rate.count - run.rate.count, self.rate.days - run.rate.days)
        return _Score(
            rate, self.found - run.found, self.faults - run.faults, self.delay - run.delay
        )


def _score(run: BacktestRun, variant: int) -> _Score:
    found, faults = found_and_faults([run], variant)
    return _Score(false_rate([run], variant), found, faults, run.found_after(variant))


def _total(scores: Sequence[_Score]) -> _Score:
    rates = [each.rate for each in scores]
    return _Score(
        Rate(sum(each.count for each in rates), sum(each.days for each in rates)),
        sum(each.found for each in scores),
        sum(each.faults for each in scores),
        sum(each.delay for each in scores),
    )


def _choose(scores: Sequence[_Score], budget: float) -> int | None:
    """The number of the best variant within the budget; None if there is none."""
    within = [number for number, each in enumerate(scores) if each.rate.is_within(budget)]

    def rank(number: int) -> tuple[float, ...]:
        score = scores[number]
        return -score.found, round(score.delay / max(1, score.faults), 2), score.rate.count, number

    return min(within, key=rank, default=None)


def _leave_one_out(
    names: Sequence[str],
    by_run: Sequence[Sequence[_Score]],
    totals: Sequence[_Score],
    budget: float,
) -> LeftOut:
    """Choose without each run, and measure on it. Without a choice, the current settings stay.

    `by_run` and `totals` are the scores of each variant.
    """
    chosen = [
        _choose([total.without(each) for total, each in zip(totals, run, strict=True)], budget)
        for run in by_run
    ]
    choices = tuple(number or 0 for number in chosen)
    measured = [run[number] for run, number in zip(by_run, choices, strict=True)]
    lost = tuple(
        name
        for name, run, score in zip(names, by_run, measured, strict=True)
        if score.found < run[0].found
    )
    total = _total(measured)
    return LeftOut(total.rate, total.faults, total.found, lost, choices, chosen.count(None))


def _refuse(timed: Sequence[BacktestRun], variants: Sequence[int], budget: float) -> Recommendation:
    """Why none is chosen, and how many runs are needed."""
    fewest = min(variants, key=lambda each: (false_rate(timed, each).count, each))
    rate = false_rate(timed, fewest)
    needed = needed_exposure(rate.count, rate.days, budget, CONFIDENCE)
    if needed <= rate.days:
        reason = (
            f"{_counted(len(timed), 'judged run')} of any length is too few: at least "
            f"{MIN_JUDGED_RUNS} are needed, to measure a choice on a run that is left out."
        )
        return Recommendation(None, reason, needed_runs=MIN_JUDGED_RUNS)
    has = f"{_counted(len(timed), 'judged run')} in {rate.days:.3g} days"
    if not isfinite(needed):
        return Recommendation(
            None,
            f"None of the settings is within the budget: the fewest false notifications are "
            f"{rate.count} of {has}, {_number(rate.per_day)} per run day. They are of "
            f"{_detectors(timed, fewest)}.",
        )
    runs = max(MIN_JUDGED_RUNS, ceil(needed / rate.days * len(timed)))
    limit = upper_limit(rate.count, CONFIDENCE) / rate.days
    return Recommendation(
        None,
        f"Too few runs: with {_counted(rate.count, 'false notification')} of {has}, the rate may "
        f"be up to {_number(limit)} per run day (95 %). For a "
        f"budget of {budget:g}, {needed:.3g} days of training are needed, about {runs} "
        f"such runs.",
        needed_days=needed,
        needed_runs=runs,
    )


def _detectors(runs: Sequence[BacktestRun], variant: int) -> str:
    """The detectors of the false notifications, the most frequent first."""
    counts = Counter(each.detector for run in runs for each in run.false_notifications(variant))
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _refuse_left_out(left_out: LeftOut, judged: int) -> Recommendation:
    """Why none is chosen: the choices exceed the budget, or one run less is too few for some."""
    rate = f"{_number(left_out.false.per_day)} false notifications per run day"
    if left_out.undecided:
        reason = (
            f"Too few runs: without one of them, for {left_out.undecided} of the {judged} judged "
            f"runs, no settings are within the budget. The current ones stay then, with {rate} in "
            "all runs left out."
        )
        return Recommendation(None, reason, left_out, needed_runs=judged + 1)
    reason = (
        "Chosen from all runs but one, the settings exceed the budget in the run that is left "
        f"out: {rate}."
    )
    return Recommendation(None, reason, left_out)


def _reason(now: _Score, chosen: _Score, budget: float) -> str:
    """What the chosen settings give, and what the current ones find if that is not as much."""
    rate = chosen.rate
    limit = upper_limit(rate.count, CONFIDENCE) / rate.days
    current = "" if now.found == chosen.found else f", {now.found} by the current settings"
    return (
        f"{_counted(rate.count, 'false notification')} in {rate.days:.3g} run days: at most "
        f"{_number(limit)} per run day (95 %), within the budget of {budget:g}. "
        f"{_found_text(chosen)} found{current}."
    )


def _found_text(score: _Score) -> str:
    return f"{score.found} of {_counted(score.faults, 'fault')}"


def _number(value: float) -> str:
    """Two digits.

    >>> _number(0.0957), _number(183.2)
    ('0.096', '180')
    """
    return f"{float(f'{value:.2g}'):g}"


def _counted(count: int, noun: str) -> str:
    """The number with its noun.

    >>> _counted(1, "run"), _counted(0, "run")
    ('1 run', '0 runs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
