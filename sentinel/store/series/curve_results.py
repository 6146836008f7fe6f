"""The results of a curve: its first, last, final and best value."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan, nan
from typing import Any

from sentinel.model.json_safe import JsonObject

TAIL_SHARE = 0.1
"""Share of the axis over which the last values of a run are averaged: one of them is noise."""


def curve_results(
    curve: Mapping[str, Any], better: str, signal: Mapping[str, Any] | None = None
) -> JsonObject:
    """First, last, lowest and highest value of a curve, and the best with its `x`; None if unknown.

    `final` is the level that the run reached: the mean over the last `TAIL_SHARE` of the axis, in
    the last attempt; NaN if a value there is not finite. `bad_count` is how many values are NaN or
    infinite, and a last one that is so is NaN. `signal` is the description of the signal, whose
    `latest` is the last value itself where the end of the curve is a mean over several steps.
    """
    signal, bad = signal or {}, curve.get("bad") or []
    bad_count = signal.get("bad_count", len(bad))
    lows, highs = (curve.get(key) or curve["mean"] for key in ("min", "max"))
    rows = [
        (x, mean, low, high)
        for x, mean, low, high in zip(curve["x"], curve["mean"], lows, highs, strict=True)
        if mean is not None and low is not None and high is not None
    ]
    keys = ("first", "last", "last_x", "final", "min", "max", "best", "best_x")
    empty = dict.fromkeys(keys)
    if not rows:
        if bad_count:
            empty |= {"last": nan, "final": nan, "last_x": max(bad, default=None)}
        return empty | {"bad_count": bad_count}
    last: float = rows[-1][1]
    if signal.get("latest") is not None:
        last = signal["latest"]
    elif bad_count and ("latest" in signal or max(bad, default=-inf) > rows[-1][0]):
        last = nan
    lowest, highest = min(rows, key=lambda row: row[2]), max(rows, key=lambda row: row[3])
    best: tuple[float | None, float | None] = (None, None)
    if better:
        best = (lowest[2], lowest[0]) if better == "lower" else (highest[3], highest[0])
    last_x = max([rows[-1][0], *bad])
    return {
        "first": rows[0][1],
        "last": last,
        "last_x": last_x,
        "final": last if isnan(last) else _tail_mean(curve, last_x),
        "bad_count": bad_count,
        "min": lowest[2],
        "max": highest[3],
        "best": best[0],
        "best_x": best[1],
    }


def _tail_mean(curve: Mapping[str, Any], last_x: float) -> float:
    """The mean of the last part of a curve with values; NaN if one there is not finite."""
    attempts = curve.get("attempt") or [0] * len(curve["x"])
    points = [
        (x, mean, attempt)
        for x, mean, attempt in zip(curve["x"], curve["mean"], attempts, strict=True)
        if mean is not None
    ]
    start = min(last_x - TAIL_SHARE * (last_x - points[0][0]), points[-1][0])
    if any(x >= start for x in curve.get("bad") or []):
        return nan
    tail = [mean for x, mean, attempt in points if x >= start and attempt == points[-1][2]]
    return float(sum(tail) / len(tail))
