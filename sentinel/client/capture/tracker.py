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

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.scalars import Refused, name_is_good, number
from sentinel.client.step_clock import StepClock

DEEPEST = 8
"""Dicts within dicts that are followed."""
SERIES = 1024
"""Series whose steps are compared; of further ones no step is believed."""


class _Thread(threading.local):
    repeating = 0
    """Calls under way in which a framework repeats to its trackers what we know."""


_thread = _Thread()


def repeats(tap: Tap, owner: Any, name: str) -> None:
    """While that function of a framework's runs, what its trackers are told is known already."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def repeating(*args: Any, **kwargs: Any) -> Any:
            _thread.repeating += 1
            try:
                return original(*args, **kwargs)
            finally:
                _thread.repeating -= 1

        return repeating

    tap.replace(owner, name, make)


@dataclass
class Steps:
    """Which of the step numbers that a tracker is given are the trainer's own."""

    clock: StepClock
    last: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """Of each series its last number, and how many optimizer steps there had been."""
    counting: set[Hashable] = field(default_factory=set)
    """Series that were seen to count optimizer steps."""
    alone: set[Hashable] = field(default_factory=set)
    """Series that went on while nobody took an optimizer step."""
    told: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """Numbers believed of late."""
    numbered: bool = False
    """Somebody else numbers the steps: a framework, or the user with `sentinel.log`."""

    def believed(self, series: Hashable, step: Any) -> int | None:
        """The number, where it is the trainer's; None where another count is better."""
        known = self.clock.given
        self.numbered = self.numbered or not (known is None or known in self.told)
        given = step if type(step) is int else _whole(step)
        if given is None or self.numbered or not self._counts(series, given):
            return None
        self.told.append(given)
        return given

    def _counts(self, series: Hashable, given: int) -> bool:
        taken = self.clock.optimizer_steps
        last, before = self.last.get(series, (given, taken))
        if series in self.last or len(self.last) < SERIES:
            self.last[series] = given, taken
        if taken > before and given - last == taken - before:
            self.counting.add(series)
        if not taken and given != last:
            self.alone.add(series)
        return series in (self.counting if taken else self.alone)


@dataclass
class Tracker:
    """The log calls of one tracker; `between` joins the names of dicts within dicts."""

    tap: Tap
    between: str = "/"
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.tap.recorder.clock)

    def hear(self, values: Any, step: Any = None) -> None:
        """Somebody logs these values, of that step where one is given."""
        if _thread.repeating or not isinstance(values, Mapping):
            return
        found = numbers(values, self.between)
        if found:
            believed = self.steps.believed(next(iter(found)), step)
            self.tap.recorder.hear(found, believed)


def numbers(values: Mapping[Any, Any], between: str = "/") -> dict[str, Any]:
    """What of these are numbers, or tensors of one that are still on a device; nothing else."""
    return dict(_numbers(values, between))


def _numbers(
    values: Mapping[Any, Any], between: str, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if type(key) is not str:
            continue
        if type(value) is dict:
            if depth < DEEPEST:
                yield from _numbers(value, between, f"{prefix}{key}{between}", depth + 1)
            continue
        try:
            found = number(value)
        except Refused:
            continue
        if name_is_good(prefix + key):
            yield prefix + key, found


def _whole(step: Any) -> int | None:
    try:
        found = number(step)
    except Refused:
        return None
    # A step on a device cannot be read now.
    return int(found) if type(found) is float and found.is_integer() else None
