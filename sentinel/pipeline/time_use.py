"""What the time of a run is used for: the seconds of each activity sum up to its wall time."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from statistics import median

from sentinel.aggregate.trainings import RESUME_KEYS
from sentinel.model.record import (
    EVAL,
    HEARTBEAT,
    METADATA,
    PHASE,
    SAVE,
    START,
    STEP,
    STOP,
    TRAINING,
    WHOLE_RUN,
    Record,
)
from sentinel.stats.histogram import Histogram

ACTIVITIES = ("startup", "productive", "evaluation", "checkpoint", "stalled", "lost", "down")
"""Startup is until the first step of an attempt; productive are steps; lost are steps that are done
again, and a last one that did not complete; down is between attempts."""

STEP_TIME_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 50.0, 100.0, 250.0, 500.0, 1000.0),
)
"""Upper bounds in seconds: from a small model to a step of RL with long generations."""

_EVENTS = {SAVE: "checkpoint", EVAL: "evaluation"}
_PHASE_WORDS = {
    "eval": "evaluation",
    "valid": "evaluation",
    "test": "evaluation",
    "predict": "evaluation",
    "save": "checkpoint",
    "checkpoint": "checkpoint",
}
"""Activities of declared phases, by the beginning of a word of their names; others are part of the
training."""
_PHASE_WORD = re.compile(f"(?<![a-z])({'|'.join(_PHASE_WORDS)})")
_RECENT_STEPS, _MAX_PHASES = 32, 16


@dataclass
class TimeUse:
    """Seconds of each activity of a run, from its records; time without a record is not included.

    The time before the event of an evaluation or a checkpoint, up to the step or event before it,
    is the time of that. If the next step follows sooner than half of a usual one, the median of the
    last `_RECENT_STEPS`, its work was done before the first event. A declared phase such as
    `sentinel.phase("eval")` is measured instead.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    step_times: Histogram = field(default_factory=lambda: Histogram(STEP_TIME_BOUNDS))
    """The measured step times, or else the productive seconds of each step."""
    _since: float = inf
    """Time up to which all is attributed; infinite before the first record."""
    _has_step: bool = False
    """Whether the attempt has taken a step."""
    _is_running: bool = False
    _highest_step: float = -inf
    _may_repeat: bool = False
    """Whether the next step may be one that was done before: after a restart or a resume."""
    _repeated_until: float = -inf
    _segments: list[tuple[str, float]] = field(default_factory=list)
    """Activity and seconds of each event since the last step, which are not in `seconds` yet."""
    _phases: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_PHASES))
    """The names of those that have begun, the innermost last."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def update(self, record: Record, *, is_stalled: bool) -> None:
        """Account for the time up to a record of the run; `is_stalled` is whether no step comes."""
        event = record.event
        if event is METADATA:
            self._may_repeat |= not RESUME_KEYS.isdisjoint(record.values)
        elif record.rank != WHOLE_RUN:
            return
        elif event is STEP:
            self._end_step(record)
        elif event is HEARTBEAT:
            if is_stalled and self._is_running:
                self._spend("stalled", record.time)
        elif event in _EVENTS:
            self._segments.append((_EVENTS[event], self._take(record.time)))
        elif event is PHASE:
            self._update_phase(record)
        else:
            self._update_attempt(record)

    def _update_attempt(self, record: Record) -> None:
        if record.event is START:
            self._spend_segments()
            self._spend("down", record.time)
            self._is_running, self._has_step, self._may_repeat = True, False, True
            self._phases.clear()
        elif record.event is STOP:
            self._spend_segments()
            self._spend("lost" if self._has_step else "startup", record.time)
            self._is_running = False
        elif record.event is TRAINING:
            self._highest_step = self._repeated_until = -inf

    def _end_step(self, record: Record) -> None:
        seconds = self._take(record.time)
        if self._segments:
            usual = median(self._recent) if self._recent else 0.0
            if seconds < usual / 2:
                activity, first = self._segments[0]
                self._segments[0] = activity, max(0.0, first - usual)
                seconds += first - self._segments[0][1]
            self._spend_segments()
        else:
            self._recent.append(seconds)
        if self._may_repeat:
            self._repeated_until, self._may_repeat = self._highest_step, False
        self._highest_step = max(self._highest_step, record.step)
        is_lost = record.step <= self._repeated_until
        activity = ("lost" if is_lost else "productive") if self._has_step else "startup"
        self.seconds[activity] += seconds
        step_time = record.values.get("step_time", seconds if self._has_step else nan)
        if isfinite(step_time):
            self.step_times.observe(step_time)
        self._has_step = self._is_running = True

    def _update_phase(self, record: Record) -> None:
        name = record.attributes.get("name", "").lower()
        begins = record.attributes.get("edge") == "begin"
        if not begins and name not in self._phases:
            self._phases.append(name)
        self._spend(self._phase_activity(), record.time)
        if begins:
            self._phases.append(name)
        else:
            self._phases.remove(name)

    def _phase_activity(self) -> str:
        """The activity of the innermost phase whose name has one."""
        words = filter(None, map(_PHASE_WORD.search, reversed(self._phases)))
        word = next(words, None)
        if word is not None:
            return _PHASE_WORDS[word[1]]
        return "productive" if self._has_step else "startup"

    def _spend(self, activity: str, until: float) -> None:
        self.seconds[activity] += self._take(until)

    def _spend_segments(self) -> None:
        for activity, seconds in self._segments:
            self.seconds[activity] += seconds
        self._segments.clear()

    def _take(self, until: float) -> float:
        """Seconds that are not attributed yet, up to that time."""
        seconds = max(0.0, until - self._since)
        self._since = until if self._since == inf else max(self._since, until)
        return seconds

    def copy(self) -> TimeUse:
        """A copy of the seconds and of the step times."""
        return TimeUse(self.seconds.copy(), self.step_times.copy())
