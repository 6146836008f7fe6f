"""Entropy explosion: the policy approaches a uniform distribution over tokens.

Formula
    risen    = a baseline without a trend has 8 nats of evidence that ln(entropy) is above its
               recent level by more than ln `recent`, or the median of the last 8 is over `factor`
               times that of the first 5
    Finding  = risen, and the median is at least 1.5 times that of the first 5 and over 0.2 nats:
               below, the most likely token is almost certain, whatever the factor
    warning  = the reward is known and is not above its start or its level before the rise, or its
               gain was lost again; otherwise info: more exploration with more reward is fine
    An entropy that is mostly negative, or logged by a control library, is not evaluated. Where the
    spread of continuous actions is logged, it is evaluated in place of the entropy.

Units
    `recent`, `factor`: plain factors of `entropy`.

Source
    Reports of runs whose entropy rises until the text is noise (verl#2738, Search-R1#162), and of
    the clip range that raises it on purpose (DAPO, arXiv:2503.14476).

Defaults
    On 120 healthy synthetic runs (84,000 points) there was no warning, and on 21 public logs one,
    in a run whose text had become noise. An entropy that doubles every 30 or 10 points is found in
    39 and 40 of 40 runs, after a median of 46 and 18 points. Runs with a raised upper clip range
    end at up to 2.5 times their entropy, and `factor` 3 is above that; `recent` 2 within a hundred
    points is more than exploration.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.signals.key_assignment import is_action_entropy
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.policy_entropy import PolicyEntropy

MIN_LEVEL = 0.2
"""Nats per token below which a policy is far from a uniform distribution."""

MIN_FACTOR = 1.5
"""Smallest factor over the first values that counts as an explosion."""


@dataclass
class EntropyExplosion:
    """Evaluates `entropy` or `action_std`, together with `reward` if it is logged."""

    recent: float = 2.0
    factor: float = 3.0

    needs = frozenset({"entropy"})
    reads = frozenset({"action_std"})
    signal = "entropy"
    severity = Severity.INFO
    remedy = (
        "Resume from the checkpoint before the onset. Lower {entropy bonus} or {upper clip "
        "range}, and halve {learning rate}. Check that the sampling engine has the trainer's "
        "weights."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy()
        self._shift = LevelShift(1, self.factor, self.recent)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one entropy."""
        spread, keys = record.values.get("action_std"), record.attributes
        is_of_actions = is_action_entropy(keys.get("entropy", ""), keys.get("reward", ""))
        entropy = self._entropy.read(record.values["entropy"], spread, is_of_actions=is_of_actions)
        if entropy is None or not self._entropy.is_judged:
            return None
        shift = self._shift
        shift.add(entropy, record.values.get("reward"), record.step)
        if not shift.is_ready:
            return None
        if not shift.has_begun:
            return CLEAR
        times = shift.current_level / shift.first_level
        has_risen = times > MIN_FACTOR and (shift.has_left_recent_level or times > self.factor)
        has_risen &= shift.current_level > MIN_LEVEL
        return self._finding(times) if has_risen else CLEAR

    def _finding(self, times: float) -> Finding:
        shift, is_unrewarded = self._shift, self._shift.is_unrewarded()
        first, now = distinct_texts(shift.first_level, shift.current_level)
        label, unit, key = self._entropy.description
        return Finding(
            summary=f"{label} rose from {first} to {now}{unit}, {times:.3g} times its start"
            + (", without a gain in reward." if is_unrewarded else "."),
            evidence=shift.evidence(key),
            severity=Severity.WARNING if is_unrewarded else None,
            onset_step=shift.onset,
        )
