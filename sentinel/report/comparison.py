"""Compares runs over one axis: their curves, results, different settings and problems.

The runs are aligned: steps and tokens count from the start of the training, times from the start of
each run. Runs differ in length, so each metric is also compared at the last point that all of them
reached.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sentinel.model.evidence_text import capitalized, label_of
from sentinel.model.incident import Resolution
from sentinel.model.json_safe import JsonObject
from sentinel.signals.catalogue import better_value
from sentinel.store.run_settings import RUN_SPECIFIC
from sentinel.store.series.curve_results import curve_results
from sentinel.store.verdict import health

if TYPE_CHECKING:
    from sentinel.store.run_reader import RunReader

Axis = Literal["step", "time", "tokens"]
AXES: tuple[Axis, ...] = get_args(Axis)
Window = tuple[float | None, float | None]
"""Start and end of a part of an axis; None is that of the run."""
WHOLE: Window = (None, None)

MAX_RUNS = 20
"""Runs that are compared at once; more cannot be distinguished in a chart."""
MAX_SIGNALS = 60
"""Signals that are compared unless they are named."""
GROUPS = ("main", "training", "policy", "reward", "evaluation", "logged")
"""Groups of signals that are compared unless they are named: those of the machine are not."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run with the name under which it is shown, and its state as of `/api/run`.

    `directory` has the results of insight, if the run is none of a log.
    """

    name: str
    reader: RunReader
    state: Mapping[str, Any]
    directory: Path | None = None


def compare(
    runs: Sequence[ComparedRun],
    *,
    signals: Sequence[str] = (),
    axis: Axis = "step",
    points: int = 400,
    window: Window = WHOLE,
) -> JsonObject:
    """The comparison as plain data, whose lists of values have one entry per run, in their order.

    Keys: axis, runs (name, state, health (status of the verdict), step, seconds, metadata of the
    heading, note, number of cases, and how many of them are open, or lasted until the end of the
    run or of their training), settings (name and values of those that differ), same_settings (how
    many are equal), metrics (signal, label, unit, better, common_x, best_run and values: first,
    last, final, best, best_x, at_common, bad_count), series (by signal, with `x` from the start of
    the run if the axis is time), and problems (title and, per run, its cases of that kind). Values
    that are not finite are NaN. Without `signals`, those of the training that most runs have.
    `window` is the part of the axis that is read. Raises ValueError for an unknown axis, or more
    than `MAX_RUNS` runs.
    """
    if axis not in AXES:
        raise ValueError(f"The axis must be one of {', '.join(AXES)}.")
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ValueError(f"Give 1 to {MAX_RUNS} runs to compare.")
    described = [{each["name"]: each for each in run.reader.signals()} for run in runs]
    names = [*signals] or _common_signals(described)
    series: dict[str, list[JsonObject | None]] = {name: [] for name in names}
    for run, known in zip(runs, described, strict=True):
        wanted = [name for name in names if name in known]
        zero = _start_time(run, wanted) if axis == "time" else 0.0
        curves = _read_curves(run, wanted, points, axis, window, zero)
        for name in names:
            curve = curves.get(name)
            series[name].append(_shifted(curve, zero) if curve and curve["x"] else None)
    names = [name for name in names if any(series[name])]
    differing, same = compare_settings([run.reader.metadata() for run in runs])
    cases = [run.reader.cases() for run in runs]
    return {
        "axis": axis,
        "runs": [_summary(run, each) for run, each in zip(runs, cases, strict=True)],
        "settings": differing,
        "same_settings": same,
        "metrics": [_metric(name, described, series[name]) for name in names],
        "series": {name: series[name] for name in names},
        "problems": _problems(cases),
    }


def run_seconds(state: Mapping[str, Any]) -> float | None:
    """How long the run took up to its last step; None if that is not known."""
    started, ended = _time(state, "started"), _time(state, "ended")
    last = _time(state, "last_step_time") if ended is None else ended
    return None if started is None or last is None or last <= started else last - started


def _time(state: Mapping[str, Any], name: str) -> float | None:
    """A time of the state in seconds since the epoch; None if it is not known, or NaN."""
    value = state.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) and value else None


def _common_signals(described: Sequence[Mapping[str, JsonObject]]) -> list[str]:
    """The signals of the training, in the order of the first run that has them.

    If there are too many, those that most runs have.
    """
    order: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for known in described:
        for name, signal in known.items():
            if signal["group"] in GROUPS:
                order.setdefault(name, (GROUPS.index(signal["group"]), len(order)))
                counts[name] += 1
    ranked = sorted(order, key=lambda name: (-counts[name], order[name]))[:MAX_SIGNALS]
    return sorted(ranked, key=order.__getitem__)


def _read_curves(  # noqa: PLR0913, PLR0917 - what a reader is asked for
    run: ComparedRun,
    names: Sequence[str],
    points: int,
    axis: Axis,
    window: Window,
    zero: float,
) -> JsonObject:
    if not names:
        return {}
    start, end = (None if each is None else each + zero for each in window)
    read: JsonObject = run.reader.series(names, points=points, axis=axis, start=start, end=end)
    curves: JsonObject = read["series"]
    return curves


def _start_time(run: ComparedRun, names: Sequence[str]) -> float:
    """When the run started, in seconds since the epoch; the first record if that is earlier."""
    curves = _read_curves(run, names, 2, "time", WHOLE, 0.0)
    firsts = [curve["x"][0] for curve in curves.values() if curve["x"]]
    started = _time(run.state, "started")
    return min([*firsts, *([] if started is None else [started])], default=0.0)


def _shifted(curve: JsonObject, start: float) -> JsonObject:
    """The curve with `x` counted from `start`."""
    if not start:
        return curve
    moved = {**curve, "x": [x - start for x in curve["x"]]}
    if curve.get("bad"):
        moved["bad"] = [x - start for x in curve["bad"]]
    return moved


def _metric(
    name: str,
    described: Sequence[Mapping[str, JsonObject]],
    curves: Sequence[JsonObject | None],
) -> JsonObject:
    """The results of one signal in every run, and which run ended at the best level.

    One step is noise, and at the common end of runs of which one died early nothing is decided: the
    final levels are compared. A run without a finite one is not the best.
    """
    signal = next(known[name] for known in described if name in known)
    better = better_value(name)
    values = [
        None if curve is None else curve_results(curve, better, known.get(name))
        for curve, known in zip(curves, described, strict=True)
    ]
    ends = [each["last_x"] for each in values if each and each["last_x"] is not None]
    common_x = min(ends, default=None)
    for value, curve in zip(values, curves, strict=True):
        if value is not None and curve is not None:
            value["at_common"] = _value_at(curve, common_x)
    levels = [value["final"] if value else None for value in values]
    finite = [each for each in levels if each is not None and isfinite(each)]
    has_best = better and finite and len(levels) - levels.count(None) > 1
    best = (min if better == "lower" else max)(finite) if has_best else None
    return {
        "signal": name,
        "label": signal.get("label") or name,
        "unit": signal.get("unit", ""),
        "group": signal["group"],
        "better": better,
        "common_x": common_x,
        "values": values,
        "best_run": levels.index(best) if best is not None and levels.count(best) == 1 else None,
    }


def _value_at(curve: Mapping[str, Any], end: float | None) -> float | None:
    """The last value of the curve up to `end`, of the last attempt that has one; NaN if it is."""
    if end is None:
        return None
    reached = [
        (x, mean)
        for x, mean in zip(curve["x"], curve["mean"], strict=True)
        if x <= end and mean is not None
    ]
    bad = max((x for x in curve.get("bad") or [] if x <= end), default=-inf)
    if not reached:
        return None if bad == -inf else nan
    x, value = reached[-1]
    return nan if bad > x else value


def compare_settings(settings: Sequence[Mapping[str, Any]]) -> tuple[list[JsonObject], int]:
    """The settings in which the runs differ with the value of each run, and how many are equal."""
    names = {name for each in settings for name in each if name not in RUN_SPECIFIC}
    differing, same = [], 0
    for name in sorted(names):
        values = [each.get(name) for each in settings]
        if all(value == values[0] for value in values):
            same += 1
        else:
            differing.append({"name": name, "values": values})
    return differing, same


def _summary(run: ComparedRun, cases: Sequence[JsonObject]) -> JsonObject:
    state = run.state
    metadata = state.get("metadata") or run.reader.metadata()
    ends = [case["lasted_until"] for case in cases if case.get("lasted_until")]
    training_ends = ends.count(Resolution.TRAINING_FINISHED.value)
    return {
        "name": run.name,
        "run": state.get("run", run.name),
        "state": state.get("state", ""),
        "health": health(state, cases, time.time())["status"],
        "step": state.get("step"),
        "attempt": state.get("attempt", 0),
        "started": _time(state, "started"),
        "seconds": run_seconds(state),
        "host": state.get("host") or metadata.get("host", ""),
        "framework": metadata.get("framework", ""),
        "algorithm": metadata.get("algorithm", ""),
        "model": metadata.get("model", ""),
        "note": (state.get("note") or {}).get("text", ""),
        "cases": len(cases),
        "open_cases": sum(1 for case in cases if case.get("resolved_step") is None),
        "lasting_cases": len(ends) - training_ends,
        "training_lasting_cases": training_ends,
    }


def _problems(cases: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """The kinds of problem that occurred, the most severe first, with the cases of each run."""
    kinds: dict[str, JsonObject] = {}
    for index, of_run in enumerate(cases):
        for case in sorted(of_run, key=lambda each: each["onset_step"]):
            diagnosis = case.get("diagnosis") or {}
            # The name of a case is run/detector#episode.
            detector = case.get("detector") or _detector_of(case["name"])
            kind = diagnosis.get("cause") or detector
            title = (case.get("message") or {}).get("title")
            row = kinds.setdefault(
                kind,
                {
                    "kind": kind,
                    "title": capitalized(diagnosis.get("title") or title or label_of(kind)),
                    "cells": [[] for _ in cases],
                },
            )
            row["cells"][index].append(
                {
                    "name": case["name"],
                    "severity": case["severity"],
                    "onset_step": case["onset_step"],
                    "opened_step": case["opened_step"],
                    "resolved_step": case.get("resolved_step"),
                }
            )
    return sorted(kinds.values(), key=_urgency)


def _urgency(problem: JsonObject) -> tuple[bool, int]:
    found = [case for cell in problem["cells"] for case in cell]
    is_critical = any(case["severity"] == "critical" for case in found)
    return not is_critical, min(case["onset_step"] for case in found)


def _detector_of(case_name: str) -> str:
    return case_name.rpartition("/")[2].partition("#")[0]
