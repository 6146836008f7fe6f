"""Selects the texts of a batch to record, and the length of each, in well under a millisecond.

No user code runs: only lists, tuples, deques and plain arrays are read, and a text is exactly a
`str`, or a list of messages with such. Everything else is dropped and counted.
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
_MAX_COMPARED_REWARDS = 512
"""The best and the worst text are searched among this many rewards of each name."""
_MAX_REWARD_NAMES = 32
_RING_DIVISOR = 4
"""One call writes at most this fraction of the ring, so that it overruns no records."""
_TRUNCATION_MARK_CHARS = 100
"""Characters reserved for truncation marks."""
_FRAME_OVERHEAD_BYTES = 512
"""Bytes of a frame besides the texts."""
_ASCII_BYTES, _OTHER_BYTES = 2, 12
"""Encoded bytes per character, with a margin for escaped characters."""

Rewards = dict[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """Unvalidated arguments of a caller: texts, rewards (a sequence, or by name), end flags."""

    prompts: Any
    completions: Any
    rewards: Any = None
    finished: Any = None


def select_samples(
    batch: GeneratedBatch, max_samples: int, ring: RingWriter
) -> Iterator[SampleFields]:
    """At most `max_samples` texts: the first, the last, the best, the worst, and others between.

    Values are those of `sample_fields`, the `index` in the batch, `finished`, and `reward` or
    `reward/<name>`. Invalid input is counted in the ring.
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
        values, attributes = sample_fields(
            prompt, completion, _length_fraction(prompt, completion, max_samples, ring)
        )
        values["index"] = float(index)
        values |= _read_row_numbers({"finished": finished, **rewards}, index, ring.count_drop)
        yield values, attributes


def _as_sequence(given: Any, count_drop: Callable[[str], None]) -> Sequence[Any] | None:
    """The elements of a plain sequence or a host array; None for None or anything else."""
    if given is None or type(given) in {list, tuple}:
        sequence: Sequence[Any] | None = given
        return sequence
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
    rewards: Rewards = {}
    for name, each in given.items():
        if not is_valid_name(name):
            count_drop("key")
        elif len(rewards) >= _MAX_REWARD_NAMES:
            count_drop("too_many_names")
        elif (row := _as_sequence(each, count_drop)) is not None:
            rewards[f"reward/{name}"] = row
    return rewards


def _reward_totals(rewards: Rewards, size: int) -> list[float]:
    """Sums of the rewards of the first texts; empty if any of them cannot be compared."""
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
    text = to_plain_text(row[index])
    if text is None:
        count_drop("type")
    return text


def _length_fraction(prompt: str, completion: str, max_samples: int, ring: RingWriter) -> float:
    """The fraction of the usual text length that fits into this ring, from 0 to 1."""
    # A third: a text may consist of escaped characters only.
    available = (
        min(ring.max_payload_bytes // 3, ring.capacity // _RING_DIVISOR // max_samples)
        - _FRAME_OVERHEAD_BYTES
    )
    each = _ASCII_BYTES if prompt.isascii() and completion.isascii() else _OTHER_BYTES
    chars = available / each - _TRUNCATION_MARK_CHARS
    return max(0.0, min(1.0, chars / (PROMPT_CHARS + HEAD_CHARS + TAIL_CHARS)))


def _read_row_numbers(
    rows: Rewards, index: int, count_drop: Callable[[str], None]
) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, row in rows.items():
        # None marks a reward that does not apply.
        if index >= len(row) or row[index] is None:
            continue
        value = _number_or_none(row[index])
        if value is None:
            count_drop("type")
        else:
            numbers[name] = value
    return numbers


def _number_or_none(value: Any) -> float | None:
    """The value as a number; None if it is not one, or is on a device."""
    if type(value) is bool:
        return float(value)
    try:
        number = read_number(value)
    except RejectedValueError:
        return None
    return number if type(number) is float else None
