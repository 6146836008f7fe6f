"""Detectors of signals that are guarded alike, each by `sentinel.stats.level_guard`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import ClassVar

from sentinel.model.evidence_text import UNITS, label_of
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import STEP, Record
from sentinel.signals.catalogue import SIGNALS
from sentinel.stats.level_guard import LEVEL_VALUES, LevelGuard

TEXT_SIGNALS = frozenset({"completion_length", "truncated_fraction", "kl_ref", "frac_zero_std"})
"""Signals of a policy that writes texts: a run that has any of them is no game."""


class GuardedSignals(DetectorDefaults):
    """Evaluates the signals of `_guards`, the most important first; one signal may have two guards.

    `remedies` and `severities` are those of single signals, in place of the detector's.
    """

    events = frozenset({STEP})
    remedies: ClassVar[dict[str, str]] = {}
    severities: ClassVar[dict[str, Severity]] = {}

    _guards: list[tuple[str, LevelGuard]]

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the signals of one record; None without any."""
        if record.event is not STEP:
            return None
        values = self.guarded_values(record)
        evaluated = is_ready = False
        worst: tuple[str, LevelGuard] | None = None
        for signal, guard in self._guards:
            value = values.get(signal)
            if value is not None and isfinite(value):
                guard.update(value, record.step)
                evaluated = True
                is_ready |= guard.is_ready
                if worst is None and guard.is_beyond:
                    worst = signal, guard
            elif guard.is_beyond and signal in record.values:
                # It is left out because something else explains it.
                evaluated = is_ready = True
        if worst is not None:
            return self._finding(*worst)
        return CLEAR if evaluated and is_ready else None

    def guarded_values(self, record: Record) -> Mapping[str, float]:
        """The values that are evaluated."""
        return record.values

    def _finding(self, signal: str, guard: LevelGuard) -> Finding:
        unit = SIGNALS[signal].unit
        bound = (guard.limit or 0.0) if guard.usual is None else guard.usual
        level, before = distinct_texts(guard.level, bound, percent=unit == "ratio")
        reason = f"the limit is {before}" if guard.usual is None else f"it was {before} before"
        named = unit and unit in UNITS and unit not in signal
        key = f"{signal}_{unit}" if named else signal
        return Finding(
            summary=f"{label_of(signal)} is {level} {unit if named else ''}".rstrip()
            + f" (median of the last {LEVEL_VALUES}); {reason}.",
            evidence={
                f"{key}_median_of_{LEVEL_VALUES}": guard.level,
                f"{key}_{'limit' if guard.usual is None else 'before'}": bound,
            },
            severity=self.severities.get(signal),
            onset_step=guard.onset,
            signal=signal,
            remedy=self.remedies.get(signal),
        )
