"""Captures the numbers that a training script logs to an experiment tracker.

Texts, tables and images are ignored. Calls that a framework makes to its trackers are ignored too,
since its integration records the same values.

The step of a tracker may count steps, batches, samples or epochs. It is used as the trainer's step
number if its series advances with the optimizer steps, or if there are no optimizer steps; never if
a framework numbers the steps. Otherwise sentinel's own count is used.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.scalars import (
    RejectedValueError,
    is_valid_name,
    read_number,
    split_by_device,
)
from sentinel.client.step_clock import StepClock

MAX_NESTING_DEPTH = 8
"""Levels of nested dicts that are read."""
MAX_SERIES = 1024
"""Series whose steps are compared; the steps of further series are not used."""


class _TrackerThreadState(threading.local):
    repeat_depth = 0
    """Depth of framework calls that pass already recorded values on to trackers."""


_thread_state = _TrackerThreadState()


def ignore_trackers_during(patcher: Patcher, owner: Any, name: str) -> None:
    """Ignore tracker calls while the function `owner.name` of a framework runs."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def forwarding(*args: Any, **kwargs: Any) -> Any:
            _thread_state.repeat_depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                _thread_state.repeat_depth -= 1

        return forwarding

    patcher.replace(owner, name, make)


@dataclass
class TrackerSteps:
    """Decides which step numbers given to a tracker are the trainer's."""

    clock: StepClock
    last_seen: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """Per series: its last number, and the count of optimizer steps at that time."""
    optimizer_step_series: set[Hashable] = field(default_factory=set)
    """Series that count optimizer steps."""
    stepless_series: set[Hashable] = field(default_factory=set)
    """Series that advance while there are no optimizer steps."""
    accepted_steps: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """The last numbers that were used."""
    numbered_elsewhere: bool = False
    """Whether a framework, or the user with `sentinel.log`, numbers the steps."""

    def trainer_step(self, series: Hashable, step: Any) -> int | None:
        """`step` as a trainer's step number, or None if another count should be used."""
        last_given = self.clock.last_given_step
        self.numbered_elsewhere = self.numbered_elsewhere or not (
            last_given is None or last_given in self.accepted_steps
        )
        given = step if type(step) is int else _integer_or_none(step)
        if (
            given is None
            or self.numbered_elsewhere
            or not self._counts_trainer_steps(series, given)
        ):
            return None
        self.accepted_steps.append(given)
        return given

    def _counts_trainer_steps(self, series: Hashable, given: int) -> bool:
        count = self.clock.optimizer_steps
        last_given, last_count = self.last_seen.get(series, (given, count))
        if series in self.last_seen or len(self.last_seen) < MAX_SERIES:
            self.last_seen[series] = given, count
        if count > last_count and given - last_given == count - last_count:
            self.optimizer_step_series.add(series)
        if not count and given != last_given:
            self.stepless_series.add(series)
        return series in (self.optimizer_step_series if count else self.stepless_series)


@dataclass
class TrackerCapture:
    """The log calls of one tracker; `separator` joins the names of nested dicts."""

    patcher: Patcher
    separator: str = "/"
    steps: TrackerSteps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = TrackerSteps(self.patcher.recorder.clock)

    def log(self, values: Any, step: Any = None) -> None:
        """Record the numbers among these values, under `step` where that is the trainer's."""
        if _thread_state.repeat_depth or not isinstance(values, Mapping):
            return
        numbers = read_numbers(values, self.separator)
        if numbers:
            # The first name stands for the series of the whole call.
            trainer_step = self.steps.trainer_step(next(iter(numbers)), step)
            self.patcher.recorder.log_from_framework(numbers, trainer_step)


def read_numbers(values: Mapping[Any, Any], separator: str = "/") -> dict[str, Any]:
    """The numbers, and one-element tensors on a device, among values that may be nested dicts."""
    found: dict[str, Any] = {}
    for name, value in _flatten(values, separator):
        with suppress(RejectedValueError):
            # Of a repeated name, such as `a/b` and `b` inside `a`, the last number counts.
            found[name] = read_number(value)
    return found


def _flatten(
    values: Mapping[Any, Any], separator: str, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if type(key) is not str:
            continue
        if type(value) is dict:
            if depth < MAX_NESTING_DEPTH:
                yield from _flatten(value, separator, f"{prefix}{key}{separator}", depth + 1)
        elif is_valid_name(prefix + key):
            yield prefix + key, value


def _integer_or_none(step: Any) -> int | None:
    numbers, _ = split_by_device({"step": step})
    # A step on a device cannot be read now.
    number = numbers.get("step")
    return int(number) if number is not None and number.is_integer() else None
