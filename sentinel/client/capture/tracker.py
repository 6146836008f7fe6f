"""Tracker: what people tell the tools that plot their runs, heard as if it were told to us.

Only numbers are looked at; texts, tables and pictures are passed over untouched. A framework that
reports to a tracker has told us the same already: while it does, nothing is heard here.

A tracker's step may count steps, batches, samples or epochs. It is taken for the trainer's number
where its series was seen to count optimizer steps, or where nobody takes any; never where a
framework numbers the steps. Else our own count stands.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.scalars import RejectedValueError, is_valid_name, read_number
from sentinel.client.step_clock import StepClock

MAX_NESTING_DEPTH = 8
"""Dicts within dicts that are followed."""
MAX_SERIES = 1024
"""Series whose steps are compared; of further ones no step is believed."""


class _TrackerThreadState(threading.local):
    repeat_depth = 0
    """Calls under way in which a framework repeats to its trackers what we know."""


_thread_state = _TrackerThreadState()


def ignore_trackers_during(patcher: Patcher, owner: Any, name: str) -> None:
    """While that function of a framework's runs, what its trackers are told is known already."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def repeating(*args: Any, **kwargs: Any) -> Any:
            _thread_state.repeat_depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                _thread_state.repeat_depth -= 1

        return repeating

    patcher.replace(owner, name, make)


@dataclass
class TrackerSteps:
    """Which of the step numbers that a tracker is given are the trainer's own."""

    clock: StepClock
    last_seen: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """Of each series its last number, and how many optimizer steps there had been."""
    optimizer_step_series: set[Hashable] = field(default_factory=set)
    """Series that were seen to count optimizer steps."""
    stepless_series: set[Hashable] = field(default_factory=set)
    """Series that went on while nobody took an optimizer step."""
    accepted_steps: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """Numbers believed of late."""
    numbered_elsewhere: bool = False
    """Somebody else numbers the steps: a framework, or the user with `sentinel.log`."""

    def trainer_step(self, series: Hashable, step: Any) -> int | None:
        """The number, where it is the trainer's; None where another count is better."""
        known = self.clock.last_given_step
        self.numbered_elsewhere = self.numbered_elsewhere or not (
            known is None or known in self.accepted_steps
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
        taken = self.clock.optimizer_steps
        last, before = self.last_seen.get(series, (given, taken))
        if series in self.last_seen or len(self.last_seen) < MAX_SERIES:
            self.last_seen[series] = given, taken
        if taken > before and given - last == taken - before:
            self.optimizer_step_series.add(series)
        if not taken and given != last:
            self.stepless_series.add(series)
        return series in (self.optimizer_step_series if taken else self.stepless_series)


@dataclass
class TrackerCapture:
    """The log calls of one tracker; `between` joins the names of dicts within dicts."""

    patcher: Patcher
    separator: str = "/"
    steps: TrackerSteps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = TrackerSteps(self.patcher.recorder.clock)

    def log(self, values: Any, step: Any = None) -> None:
        """Somebody logs these values, of that step where one is given."""
        if _thread_state.repeat_depth or not isinstance(values, Mapping):
            return
        found = read_numbers(values, self.separator)
        if found:
            believed = self.steps.trainer_step(next(iter(found)), step)
            self.patcher.recorder.log_from_framework(found, believed)


def read_numbers(values: Mapping[Any, Any], separator: str = "/") -> dict[str, Any]:
    """What of these are numbers, or tensors of one that are still on a device; nothing else."""
    return dict(_iterate_numbers(values, separator))


def _iterate_numbers(
    values: Mapping[Any, Any], separator: str, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if type(key) is not str:
            continue
        if type(value) is dict:
            if depth < MAX_NESTING_DEPTH:
                yield from _iterate_numbers(
                    value, separator, f"{prefix}{key}{separator}", depth + 1
                )
            continue
        try:
            found = read_number(value)
        except RejectedValueError:
            continue
        if is_valid_name(prefix + key):
            yield prefix + key, found


def _integer_or_none(step: Any) -> int | None:
    try:
        found = read_number(step)
    except RejectedValueError:
        return None
    # A step on a device cannot be read now.
    return int(found) if type(found) is float and found.is_integer() else None
