"""The steps at which a run departs from the band of some good runs, signal by signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np

from sentinel.model.json_safe import JsonObject
from sentinel.report.comparison import GROUPS, ComparedRun
from sentinel.signals.catalogue import SIGNAL_GROUPS, better_value
from sentinel.stats.good_band import Curve, GoodBand, good_band

MAX_POINTS = 1000
"""Points of a curve that are read."""
MAX_SIGNALS = 100
PROGRESS = frozenset({"epoch", "optimizer_steps", "tokens_seen"})
"""Signals of how much of its data a training has seen, which its settings determine."""
_SPEED = frozenset(signal.name for signal in SIGNAL_GROUPS["Speed"])
_LOGGED = "logged_"
"""Start of the names of values that a framework logs beside those that are measured."""
_LEVEL_SHARES = {"Loss": 0.02, "Optimiser": 0.05, "Progress": 0.02, "Speed": 0.5}
_POLICY_LEVEL_SHARE, _UNKNOWN_LEVEL_SHARE = 0.35, 0.05
_LEVEL_SHARE_BY_SIGNAL = {
    signal.name: _LEVEL_SHARES.get(heading, _POLICY_LEVEL_SHARE)
    for heading, signals in SIGNAL_GROUPS.items()
    for signal in signals
} | {"learning_rate": 0.0}
"""How far levels of runs of other seeds differ, as a share of the level: policies learn at
different times, and nodes differ in speed."""


@dataclass(frozen=True, slots=True)
class SignalDeparture:
    """Where a run leaves the band of a signal, see `Departure`.

    Without a band it has a NaN or infinite value there, which the good runs do not have: `value` is
    NaN then, and so are the bounds.
    """

    signal: str
    label: str
    unit: str
    step: int
    low: float
    high: float
    value: float
    sign: int

    def to_dict(self) -> JsonObject:
        """As plain data; `effect` is `better`, `worse`, or empty where neither is known."""
        better = {"lower": -1, "higher": 1}.get(better_value(self.signal), 0)
        effect = "" if not better else "better" if better == self.sign else "worse"
        return {
            "signal": self.signal,
            "label": self.label,
            "unit": self.unit,
            "step": self.step,
            "low": self.low,
            "high": self.high,
            "value": self.value,
            "side": {1: "above", -1: "below"}.get(self.sign, "not finite"),
            "effect": "worse" if not self.sign else effect,
        }


@dataclass(frozen=True, slots=True)
class GoodRuns:
    """The good runs of a comparison, and their band by signal up to the last step of another run.

    `signals` describes each signal, as `RunReader.signals`; in `finite` ones, each value of the
    good runs is finite.
    """

    signals: Mapping[str, JsonObject]
    bands: Mapping[str, GoodBand]
    finite: frozenset[str]

    @staticmethod
    def of(runs: Sequence[ComparedRun], last_step: float = inf) -> GoodRuns:
        """The bands of these runs in the signals of the training that all of them have."""
        described = [_signals(run) for run in runs]
        shared = [name for name in described[0] if all(name in each for each in described)]
        names = [name for name in shared if _is_outcome(name, shared)][:MAX_SIGNALS]
        read = [_read(run, names) for run in runs]
        bands = {
            name: band
            for name in names
            if all(name in curves for curves, _ in read)
            and (band := _band(name, [curves[name] for curves, _ in read], last_step)) is not None
        }
        finite = frozenset(name for name in names if all(name not in bad for _, bad in read))
        return GoodRuns({name: described[0][name] for name in names}, bands, finite)

    def departures(
        self, run: ComparedRun, signals: Sequence[str] | None = None
    ) -> list[SignalDeparture]:
        """The departures of a run in these signals, or in all, the first one first.

        Those of speed come last: other programs of the node can make them.
        """
        known = {each["name"] for each in run.reader.signals()}
        names = [name for name in self.signals if name in known and name in (signals or known)]
        curves, bad = _read(run, names)
        found = []
        for name in names:
            bad_step = bad.get(name) if name in self.finite else None
            departure = self._departure(name, curves.get(name), bad_step)
            if departure is not None:
                found.append(departure)
        order = {name: at for at, name in enumerate(names)}
        return sorted(
            found, key=lambda each: (each.signal in _SPEED, each.step, order[each.signal])
        )

    def _departure(
        self, name: str, curve: Curve | None, bad_step: float | None
    ) -> SignalDeparture | None:
        signal, band = self.signals[name], self.bands.get(name)
        found = None if band is None or curve is None else band.departure(curve)
        label, unit = signal.get("label") or name, signal.get("unit", "")
        if bad_step is not None and (found is None or bad_step <= found.step):
            return SignalDeparture(name, label, unit, int(bad_step), nan, nan, nan, 0)
        if found is None:
            return None
        bounds = (found.low, found.high, found.value, found.sign)
        return SignalDeparture(name, label, unit, int(found.step), *bounds)


def _is_outcome(name: str, others: Sequence[str]) -> bool:
    """Whether a signal shows how a training goes, and is no second record of another one."""
    own = name.removeprefix(_LOGGED)
    return name not in PROGRESS and (own == name or own not in others)


def _band(name: str, curves: Sequence[Curve], last_step: float) -> GoodBand | None:
    share = _LEVEL_SHARE_BY_SIGNAL.get(name.removeprefix("eval/"), _UNKNOWN_LEVEL_SHARE)
    return good_band(curves, last_step, share)


def _read(run: ComparedRun, names: Sequence[str]) -> tuple[dict[str, Curve], dict[str, float]]:
    """The curves by signal, each step as the last attempt recorded it, and by signal the first step
    with a value that is not finite.
    """
    series = run.reader.series(names, points=MAX_POINTS)["series"] if names else {}
    curves = {name: curve for name, each in series.items() if (curve := _curve(each))}
    return curves, {name: min(each["bad"]) for name, each in series.items() if each.get("bad")}


def _curve(series: Mapping[str, Any]) -> Curve | None:
    points: list[tuple[float, float]] = []
    for x, mean in zip(series["x"], series["mean"], strict=True):
        while points and points[-1][0] >= x:
            points.pop()
        if mean is not None:
            points.append((x, mean))
    return Curve(*np.array(points, dtype=float).T) if points else None


def _signals(run: ComparedRun) -> dict[str, JsonObject]:
    """The signals of the training, in the order in which they are shown."""
    known = [each for each in run.reader.signals() if each["group"] in GROUPS]
    known.sort(key=lambda each: GROUPS.index(each["group"]))
    return {each["name"]: each for each in known}
