"""Texts: which of a batch's texts are sent, and how much of each, in well under a millisecond.

No user's code is run: only lists, tuples, queues and plain arrays are looked into, and a text is
what is exactly a `str`, or a list of messages of such. All else is left out and counted.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.client.capture.scalars import Refused, name_is_good, number
from sentinel.stats.chat_text import plain
from sentinel.stats.text_selection import choice
from sentinel.stats.text_truncation import HEAD, PROMPT, TAIL, Told, told
from sentinel.transport.ring import RingWriter

AT_ONCE = 8
"""Texts sent of one call, where nothing else was asked for."""
_SCANNED = 512
"""Rewards of one kind that are compared for the best and the worst: the first ones."""
_REWARDS = 32
"""Kinds of reward that are kept."""
_RING_SHARE = 4
"""One call takes at most this part of the ring, so that it overruns nothing."""
_MARKS = 100
"""Characters that the marks of what was left out may take."""
_ROOM_FOR_THE_REST = 512
"""Bytes of a frame that are not text."""
_ASCII_BYTES, _OTHER_BYTES = 2, 12
"""Bytes a character takes on its way, with a margin for those that are escaped."""

Rewards = dict[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a caller gave, unseen: texts, rewards by name or one row of them, ends that were met."""

    prompts: Any
    completions: Any
    rewards: Any = None
    finished: Any = None


def picked(batch: Batch, most: int, ring: RingWriter) -> Iterator[Told]:
    """At most `most` texts of the batch: the first, the last, the best, the worst, and between.

    Beside what `text_cut.told` says, values hold the `index` in the batch, `finished`, and `reward`
    or `reward/<name>`. What is refused is counted in the ring.
    """
    completions = _row(batch.completions, ring.drop) or []
    prompts = _row(batch.prompts, ring.drop) or []
    finished = _row(batch.finished, ring.drop) or []
    rewards = _rewards(batch.rewards, ring.drop)
    rows = (prompts, finished, *rewards.values())
    ring.drop("shape", sum(0 < len(row) != len(completions) for row in rows))
    for index in choice(len(completions), most, _totals(rewards, len(completions))):
        completion = _text(completions, index, ring.drop)
        if completion is None:
            continue
        prompt = _text(prompts, index, ring.drop) or ""
        values, facts = told(prompt, completion, _share(prompt, completion, most, ring))
        values["index"] = float(index)
        values |= _numbers({"finished": finished, **rewards}, index, ring.drop)
        yield values, facts


def _row(given: Any, drop: Callable[[str], None]) -> Sequence[Any] | None:
    """The elements of a plain sequence or of an array in memory; None for nothing, or all else."""
    if given is None or type(given) in {list, tuple}:
        found: Sequence[Any] | None = given
        return found
    if type(given) is deque:
        return list(given)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    flat: Any = None
    if numpy is not None and type(given) is numpy.ndarray:
        flat = given if given.ndim == 1 and given.dtype.kind in "fiub" else None
    elif torch is not None and type(given) is torch.Tensor and given.device.type == "cpu":
        flat = given.detach() if given.ndim == 1 else None
    if flat is None:
        drop("type")
        return None
    row: list[Any] = flat.tolist()
    return row


def _rewards(given: Any, drop: Callable[[str], None]) -> Rewards:
    if type(given) is not dict:
        row = _row(given, drop)
        return {} if row is None else {"reward": row}
    found: Rewards = {}
    for name, each in given.items():
        if not name_is_good(name):
            drop("key")
        elif len(found) >= _REWARDS:
            drop("too_many_names")
        elif (row := _row(each, drop)) is not None:
            found[f"reward/{name}"] = row
    return found


def _totals(rewards: Rewards, size: int) -> list[float]:
    """Sums of the rewards of the first texts; empty where any of them cannot be compared."""
    rows = [row[: min(size, _SCANNED)] for row in rewards.values()]
    if not rows or len({*map(len, rows)}) > 1:
        return []
    if not all({*map(type, row)} <= {float, int, type(None)} for row in rows):
        rows = [[_number(value) for value in row] for row in rows]
    try:
        return [float(sum(filter(None, values))) for values in zip(*rows, strict=True)]
    except OverflowError:
        return []


def _text(row: Sequence[Any], index: int, drop: Callable[[str], None]) -> str | None:
    if index >= len(row):
        return None
    found = plain(row[index])
    if found is None:
        drop("type")
    return found


def _share(prompt: str, completion: str, most: int, ring: RingWriter) -> float:
    """How much of the usual length there is room for in this ring."""
    # A third, since a hostile text may be all characters that are escaped.
    room = min(ring.largest // 3, ring.capacity // _RING_SHARE // most) - _ROOM_FOR_THE_REST
    each = _ASCII_BYTES if prompt.isascii() and completion.isascii() else _OTHER_BYTES
    return max(0.0, min(1.0, (room / each - _MARKS) / (PROMPT + HEAD + TAIL)))


def _numbers(rows: Rewards, index: int, drop: Callable[[str], None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, row in rows.items():
        # None is how a reward that does not apply is written.
        if index >= len(row) or row[index] is None:
            continue
        value = _number(row[index])
        if value is None:
            drop("type")
        else:
            found[name] = value
    return found


def _number(value: Any) -> float | None:
    """The value as a number; None for what is none, or would have to be fetched from a device."""
    if type(value) is bool:
        return float(value)
    try:
        found = number(value)
    except Refused:
        return None
    return found if type(found) is float else None
