"""Where the last run of a comparison departs from the others, and which difference explains it.

The other runs are taken as good. One's own runs, as far as they resemble these, show how often such
a difference came with such a departure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf, isnan

from sentinel.model.json_safe import JsonObject
from sentinel.model.quantity_text import format_number
from sentinel.report.comparison import ComparedRun
from sentinel.report.departure import GoodRuns, SignalDeparture
from sentinel.report.differences import (
    SURE_CHANCE,
    Difference,
    OtherRun,
    comparable_settings,
    rank_differences,
)
from sentinel.report.own_runs import READ_ERRORS

SCHEDULE = "learning_rate"
"""The signal that the settings of a run make, not its training."""
_SCHEDULE_SETTING = re.compile(
    r"(^|[^a-z])lr($|[^a-z])|learning.?rate|sched|warm.?up|steps|epochs", re.IGNORECASE
)
"""Names of settings that the learning rates of a run follow from."""
UNDETERMINED = "The cause cannot be determined"


def what_changed(runs: Sequence[ComparedRun], own_runs: Iterable[ComparedRun] = ()) -> JsonObject:
    """How the last of the runs departs from the others, and what differs, as plain data.

    Keys: run (its name), good (names of the others), compared (number of signals with a band),
    departures (signal, label, unit, step, low, high, value, side and effect of each signal in which
    it departs, the first one first), differences (the likeliest cause first, see
    `Difference.to_dict`), own_runs (how many of `own_runs` were used), text (where it departs) and
    conclusion (what explains it, or that this cannot be determined). Bounds of a value that is not
    finite are NaN. Raises what the readers raise.
    """
    *good, bad = runs
    last_step = bad.state.get("step")
    good_runs = GoodRuns.of(good, inf if last_step is None else float(last_step))
    found = good_runs.departures(bad)
    departures = [each for each in found if each.signal != SCHEDULE]
    others = [*_other_runs(good_runs, departures, own_runs, {run.name for run in runs})]
    differences = rank_differences(
        [comparable_settings(run.reader.metadata()) for run in good],
        comparable_settings(bad.reader.metadata()),
        others,
    )
    differences = _with_schedule(differences, found)
    return {
        "run": bad.name,
        "good": [run.name for run in good],
        "compared": len(good_runs.bands),
        "departures": [each.to_dict() for each in departures],
        "differences": [each.to_dict() for each in differences],
        "own_runs": len(others),
        "text": _text(bad.name, [run.name for run in good], good_runs, departures),
        "conclusion": _conclusion(departures, differences, len(others)),
    }


def _other_runs(
    good_runs: GoodRuns,
    departures: Sequence[SignalDeparture],
    own_runs: Iterable[ComparedRun],
    compared: set[str],
) -> Iterator[OtherRun]:
    """One's own runs with the signals of the departure, and whether they depart like the run."""
    if not departures:
        return
    first = departures[0]
    for run in own_runs:
        if run.name in compared:
            continue
        with suppress(*READ_ERRORS):
            if all(each["name"] != first.signal for each in run.reader.signals()):
                continue
            found = good_runs.departures(run, [first.signal])
            has_departed = any(each.sign == first.sign for each in found)
            yield OtherRun(comparable_settings(run.reader.metadata()), has_departed)


def _with_schedule(
    differences: Sequence[Difference], departures: Sequence[SignalDeparture]
) -> list[Difference]:
    """The differences, with that of the learning rates if no setting explains it.

    What a training is given is no departure.
    """
    found = next((each for each in departures if each.signal == SCHEDULE), None)
    if found is None or any(_SCHEDULE_SETTING.search(each.name) for each in differences):
        return [*differences]
    good = f"{_number(found.low, '')} to {_number(found.high, '')} at step {found.step:,}"
    schedule = Difference("learning rate schedule", "setting", good, _number(found.value, ""))
    places = (at for at, each in enumerate(differences) if each.score <= 0)
    at = next(places, len(differences))
    return [*differences[:at], schedule, *differences[at:]]


def _text(
    run: str, good: Sequence[str], good_runs: GoodRuns, departures: Sequence[SignalDeparture]
) -> str:
    names = " and ".join([", ".join(good[:-1]), good[-1]] if len(good) > 1 else good)
    if not good_runs.bands and not departures:
        return f"There are too few common steps to compare {run} with {names}."
    if not departures:
        count = len(good_runs.bands)
        return (
            f"{run} does not leave the band of {names} in any of {count} "
            f"signal{'s' if count > 1 else ''}."
        )
    first = departures[0]
    if isnan(first.value):
        return f"{run} departs from {names} at step {first.step:,}: {first.label} is not finite."
    bounds = f"{_number(first.low, first.unit)} to {_number(first.high, first.unit)}"
    return (
        f"{run} leaves the band of {names} at step {first.step:,}: {first.label} comes to "
        f"{_number(first.value, first.unit)}, where {bounds} is expected."
    )


def _number(value: float, unit: str) -> str:
    return f"{format_number(value)} {unit}".strip()


def _conclusion(
    departures: Sequence[SignalDeparture], differences: Sequence[Difference], own_runs: int
) -> str:
    """What explains the departure, or why that cannot be determined."""
    if not departures:
        return ""
    if not differences:
        return (
            f"{UNDETERMINED}: nothing that is recorded of the runs differs but the seed, and what "
            "names and stores a run."
        )
    first, *rest = differences
    likely = [each for each in rest if not each.is_unlikely]
    evidence = (
        f"{first.departed} of {first.count} runs with such a difference departed, and "
        f"{first.departed_without} of {first.count_without} without it"
    )
    if first.count and first.score > 0 and first.chance <= SURE_CHANCE:
        return f"The likeliest cause is {first.name}: of your other runs, {evidence}."
    if not likely and not first.is_unlikely:
        others = "" if not rest else ", and each other difference was in runs that did not depart"
        return f"The likeliest cause is {first.name}: no other recorded setting differs{others}."
    if first.is_unlikely:
        return (
            f"{UNDETERMINED}: each recorded difference was in at least {first.count} of your other "
            "runs that did not depart."
        )
    names = ", ".join(each.name for each in [first, *likely][:5])
    reason = (
        f"your other runs ({own_runs}) do not distinguish them"
        if own_runs
        else "there are no other runs of yours that could distinguish them"
    )
    return f"{UNDETERMINED}: {1 + len(likely)} settings differ ({names}), and {reason}."
