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

from sentinel.client.capture.scalars import RejectedValueError, is_valid_name, read_number
from sentinel.model.sample_text import (
    HEAD_CHARS,
    PROMPT_CHARS,
    TAIL_CHARS,
    SampleFields,
    sample_fields,
    select_indices,
    to_plain_text,
)
from sentinel.transport.ring import RingWriter

DEFAULT_SAMPLES_PER_CALL = 8
"""Texts sent of one call, where nothing else was asked for."""
_MAX_COMPARED_REWARDS = 512
"""Rewards of one kind that are compared for the best and the worst: the first ones."""
_MAX_REWARD_NAMES = 32
"""Kinds of reward that are kept."""
_RING_DIVISOR = 4
"""One call takes at most this part of the ring, so that it overruns nothing."""
_TRUNCATION_MARK_CHARS = 100
"""Characters that the marks of what was left out may take."""
_FRAME_OVERHEAD_BYTES = 512
"""Bytes of a frame that are not text."""
_ASCII_BYTES, _OTHER_BYTES = 2, 12
"""Bytes a character takes on its way, with a margin for those that are escaped."""

Rewards = dict[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """What a caller gave, unseen: texts, rewards by name or one row of them, ends that were met."""

    prompts: Any
    completions: Any
    rewards: Any = None
    finished: Any = None


def select_samples(
    batch: GeneratedBatch, max_samples: int, ring: RingWriter
) -> Iterator[SampleFields]:
    """At most `most` texts of the batch: the first, the last, the best, the worst, and between.

    Beside what `text_cut.told` says, values hold the `index` in the batch, `finished`, and `reward`
    or `reward/<name>`. What is refused is counted in the ring.
    """
    completions = _as_sequence(batch.completions, ring.count_drop) or []
    prompts = _as_sequence(batch.prompts, ring.count_drop) or []
    finished = _as_sequence(batch.finished, ring.count_drop) or []
    rewards = _rewards(batch.rewards, ring.count_drop)
    rows = (prompts, finished, *rewards.values())
    ring.count_drop("shape", sum(0 < len(row) != len(completions) for row in rows))
    for index in select_indices(
        len(completions), max_samples, _reward_totals(rewards, len(completions))
    ):
        completion = _text(completions, index, ring.count_drop)
        if completion is None:
            continue
        prompt = _text(prompts, index, ring.count_drop) or ""
        values, facts = sample_fields(
            prompt, completion, _length_fraction(prompt, completion, max_samples, ring)
        )
        values["index"] = float(index)
        values |= _read_row_numbers({"finished": finished, **rewards}, index, ring.count_drop)
        yield values, facts


def _as_sequence(given: Any, count_drop: Callable[[str], None]) -> Sequence[Any] | None:
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
        count_drop("type")
        return None
    row: list[Any] = flat.tolist()
    return row


def _rewards(given: Any, count_drop: Callable[[str], None]) -> Rewards:
    if type(given) is not dict:
        row = _as_sequence(given, count_drop)
        return {} if row is None else {"reward": row}
    found: Rewards = {}
    for name, each in given.items():
        if not is_valid_name(name):
            count_drop("key")
        elif len(found) >= _MAX_REWARD_NAMES:
            count_drop("too_many_names")
        elif (row := _as_sequence(each, count_drop)) is not None:
            found[f"reward/{name}"] = row
    return found


def _reward_totals(rewards: Rewards, size: int) -> list[float]:
    """Sums of the rewards of the first texts; empty where any of them cannot be compared."""
    rows = [row[: min(size, _MAX_COMPARED_REWARDS)] for row in rewards.values()]
    if not rows or len({*map(len, rows)}) > 1:
        return []
    if not all({*map(type, row)} <= {float, int, type(None)} for row in rows):
        rows = [[_number_or_none(value) for value in row] for row in rows]
    try:
        return [float(sum(filter(None, values))) for values in zip(*rows, strict=True)]
    except OverflowError:
        return []


def _text(row: Sequence[Any], index: int, count_drop: Callable[[str], None]) -> str | None:
    if index >= len(row):
        return None
    found = to_plain_text(row[index])
    if found is None:
        count_drop("type")
    return found


def _length_fraction(prompt: str, completion: str, max_samples: int, ring: RingWriter) -> float:
    """How much of the usual length there is room for in this ring."""
    # A third, since a hostile text may be all characters that are escaped.
    room = (
        min(ring.max_payload_bytes // 3, ring.capacity // _RING_DIVISOR // max_samples)
        - _FRAME_OVERHEAD_BYTES
    )
    each = _ASCII_BYTES if prompt.isascii() and completion.isascii() else _OTHER_BYTES
    return max(
        0.0,
        min(1.0, (room / each - _TRUNCATION_MARK_CHARS) / (PROMPT_CHARS + HEAD_CHARS + TAIL_CHARS)),
    )


def _read_row_numbers(
    rows: Rewards, index: int, count_drop: Callable[[str], None]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, row in rows.items():
        # None is how a reward that does not apply is written.
        if index >= len(row) or row[index] is None:
            continue
        value = _number_or_none(row[index])
        if value is None:
            count_drop("type")
        else:
            found[name] = value
    return found


def _number_or_none(value: Any) -> float | None:
    """The value as a number; None for what is none, or would have to be fetched from a device."""
    if type(value) is bool:
        return float(value)
    try:
        found = read_number(value)
    except RejectedValueError:
        return None
    return found if type(found) is float else None
