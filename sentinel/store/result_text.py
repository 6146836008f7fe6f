"""Results of insight in a sentence each, for Markdown; their data may be anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeGuard

from sentinel.model.quantity_text import format_number

Data = Mapping[str, Any]

_MAX_NAMES = 3
_SAME = 1e-3
"""Relative difference of losses below which neither is lower."""


def result_text(kind: str, data: Data) -> str:
    """A result in words, in one or two sentences; empty if that is not known."""
    texts = {"loss_surface": _surface, "trajectory": _trajectory, "importance": _importance}
    try:
        return texts[kind](data) if kind in texts else ""
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return ""


def layers_text(grid: Data) -> str:
    """The newest gradient norms of layers; empty without any."""
    try:
        rows = zip(grid["layers"], grid["values"], strict=True)
        known = {layer: row[-1] for layer, row in rows if row and row[-1] is not None}
        step = grid["x"][-1] if grid["x"] else None
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    if not known or step is None:
        return ""
    zeros = [layer for layer, value in known.items() if value == 0]
    others = sorted((value, layer) for layer, value in known.items() if value > 0)
    texts = []
    if others:
        (low, lowest), (high, highest) = others[0], others[-1]
        texts.append(
            f"At step {step:,}, gradient norms of {len(known)} layers go from "
            f"{format_number(low)} in {lowest} to {format_number(high)} in {highest}."
        )
    if zeros:
        texts.append(f"Zero in {_names(zeros)}.")
    return " ".join(texts)


def _surface(data: Data) -> str:
    losses = [
        (loss, x, y)
        for y, row in zip(data["y"] or [0.0], data["loss"], strict=True)
        for x, loss in zip(data["x"], row, strict=True)
        if _is_number(loss)
    ]
    if not losses:
        return "No evaluation of the loss was finite."
    lowest, x, y = min(losses)
    place = f"({format_number(x)}, {format_number(y)})" if data["y"] else format_number(x)
    text = f"The lowest loss is {format_number(lowest)} at {place}."
    center = (data.get("center") or {}).get("loss")
    if _is_number(center):
        text = f"The loss at the weights is {format_number(center)}"
        if center - lowest > _SAME * abs(center):
            text += f"; the lowest one in the picture is {format_number(lowest)} at {place}."
        else:
            text += ", and nothing in the picture is lower."
    sharpness = data.get("sharpness") or {}
    if _is_number(sharpness.get("ratio")):
        share = format_number(sharpness["ratio"])
        text += f" The sharpness is {share} times the limit of stability."
    return text


def _trajectory(data: Data) -> str:
    texts = []
    for run in data["runs"][:_MAX_NAMES]:
        initial, travelled = run["distance_to_initial"][-1], run["distance_travelled"][-1]
        unit = " times the norm of the initial weights" if run.get("initial_norm") else ""
        text = f"At step {run['steps'][-1]:,}, the weights are {format_number(initial)}{unit} "
        text += f"from where they began, and have travelled {format_number(travelled)}"
        if _is_number(run.get("straightness")):
            text += f" (straightness {format_number(run['straightness'])})"
        texts.append(f"{text}.")
    return " ".join(texts)


def _importance(data: Data) -> str:
    known = [each for each in data["settings"] if _is_number(each.get("importance"))]
    best = [f"{each['name']} ({format_number(each['importance'])})" for each in known[:_MAX_NAMES]]
    if not best:
        return f"{data['runs']} runs are too few to show which settings explain {data['outcome']}."
    return f"Over {data['runs']} runs, {data['outcome']} depends most on {', '.join(best)}."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and isfinite(value)
