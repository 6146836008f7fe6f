"""Length explosion: completions grow quickly, mostly without a gain in reward.

Formula
    recent   = the baseline of the length has `sure` nats of evidence of growth, the median of the
               last 8 is `recent` times the expected length and that of the first 5 records or more,
               and 10 % above every earlier one
    far      = that median is over `factor` times that of the first 5, by over 4 standard errors
    cut off  = each of the last 5 lengths is 0.9 of the longest completion of the run, or 0.8 of
               the completions are cut off; and that median is over 1.5 times that of the first 5
    Finding  = recent, far or cut off
    warning  = the reward is known and is not above its level before the growth; or recent, and the
               median of 8 is over `runaway` times that of 32 to 64 records before; otherwise info:
               longer completions that earn more are typical of reasoning

Units
    `factor`, `recent`, `runaway`: plain factors of `completion_length`. `sure`: nats of evidence.

Source
    In DeepSeek-R1 (arXiv:2501.12948) length grows with the reward; growth without it is the length
    bias described by Dr. GRPO (arXiv:2503.20783) and DAPO (arXiv:2503.14476). Evidence:
    sentinel.stats.baseline.

Defaults
    On 1,500 healthy synthetic runs (1,002,970 points), in which completions end at 0.5 to 3 times
    their length, there were 2 warnings. A length that doubles every 80, 30 or 10 points is found in
    97, 100 and 100 of 100 runs, after a median of 55, 24 and 12 points. `sure` 9: of 5,000 other
    healthy runs 9 have a warning from 9 nats on and 19 from 7 on, and above 9 hardly fewer. Below
    `recent` 1.2 growth is of no importance. `factor` 2 is a common definition of an explosion. A
    reward that rises with the length excuses all but `runaway` 3 within 64 records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.shared_baselines import SharedBaselines

MIN_COUNT = 10
"""Lengths needed for a result: five for the first level, and five of the current one."""

SUDDEN_SHARE = 0.1
"""Lengths below this fraction of the first ones are a collapse, and not where the run began."""

NOTE_PERIOD = 32
"""Lengths between two noted levels; the older of two is compared with the present one."""

LIMIT_VALUES = 5
"""Lengths in a row at the limit that are an explosion."""

MIN_LIMIT_FACTOR = 1.5
"""Smallest growth that reaches a limit and counts as an explosion."""

LIMIT_SHARE = 0.9
"""Mean length, as a fraction of the longest of the run, if nearly all completions are cut off."""

MAX_TRUNCATED_SHARE = 0.8
"""Share of truncated completions that shows the same, as in the detector truncation."""


@dataclass
class LengthExplosion:
    """Evaluates `completion_length`, together with `reward` if it is logged."""

    factor: float = 2.0
    recent: float = 1.2
    runaway: float = 3.0
    sure: float = 9.0

    needs = frozenset({"completion_length"})
    baselines = frozenset({"completion_length"})
    signal = "completion_length"
    severity = Severity.INFO
    remedy = (
        "Read a few of the longest completions. If they ramble or repeat themselves, resume from "
        "the checkpoint before the onset. Remove the length from the objective: set {loss "
        "aggregation} to one without length bias, and use {mask for truncated "
        "completions}."
    )

    def __post_init__(self) -> None:
        self._departure = LevelDeparture("completion_length", 1, self.recent, self.sure)
        self._shift = LevelShift(1, self.factor, sudden_share=SUDDEN_SHARE)
        self._noted_levels: deque[float] = deque(maxlen=2)
        self._limit_count = 0
        self._longest = 0.0

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        departure, shift = self._departure, self._shift
        if not isfinite(length) or length <= 0.0 or not departure.add(length, baselines):
            return None
        shift.add(length, reward, record.step)
        if shift.count % NOTE_PERIOD == 0:
            self._noted_levels.append(shift.current_level)
        self._update_limit(record, length)
        if shift.count < MIN_COUNT:
            return None
        is_at_limit = self._limit_count >= LIMIT_VALUES
        if departure.has_departed or shift.half_way_step is not None or is_at_limit:
            times = shift.current_level / shift.first_level
            is_recent = departure.has_departed and times >= self.recent
            is_far = times > self.factor and shift.is_significant
            if is_recent or is_far or (is_at_limit and times > MIN_LIMIT_FACTOR):
                return self._finding(record, is_recent=is_recent)
        bound = self.recent * max(departure.expected_level or 0.0, shift.first_level)
        threshold = max(departure.threshold or inf, bound)
        return Clear(min(threshold, self.factor * shift.first_level))

    def _finding(self, record: Record, *, is_recent: bool) -> Finding:
        shift, departure = self._shift, self._departure
        expected = departure.expected_level or shift.first_level
        is_unrewarded = shift.is_unrewarded(expected if is_recent else None)
        is_runaway = (
            is_recent
            and len(self._noted_levels) > 1
            and shift.current_level > self.runaway * self._noted_levels[0]
        )
        before = max(expected, shift.first_level) if is_recent else shift.first_level
        evidence = shift.evidence("completion_length_tokens", expected)
        if "truncated_fraction" in record.values:
            evidence["truncated_fraction"] = record.values["truncated_fraction"]
        first, now = distinct_texts(before, shift.current_level, digits=4)
        return Finding(
            summary=f"Completions grew from {first} to {now} tokens"
            + (", without a gain in reward." if is_unrewarded else "."),
            evidence=evidence,
            severity=Severity.WARNING if is_unrewarded or is_runaway else None,
            onset_step=departure.onset_range[0] if is_recent else shift.half_way_step,
            onset_range=departure.onset_range if is_recent else None,
            threshold=departure.threshold,
        )

    def _update_limit(self, record: Record, length: float) -> None:
        """Update the number of records in a row whose completions nearly all reach the limit."""
        values = record.values
        longest = values.get("completion_length_max", 0.0)
        self._longest = max(self._longest, longest if longest < inf else 0.0)
        is_at_limit = (
            length >= LIMIT_SHARE * (self._longest or inf)
            or values.get("truncated_fraction", 0.0) >= MAX_TRUNCATED_SHARE
        )
        self._limit_count = self._limit_count + 1 if is_at_limit else 0
