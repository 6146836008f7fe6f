"""Entropy collapse: the policy has become almost deterministic without a gain in reward.

Formula
    sudden   = the baseline of the entropy, a power of the sum of the learning rates fitted to the
               run so far, has `sure` nats of evidence that the entropy departs downwards, and the
               median of the last 8 is `ratio` of the expected value or less, and 10 % below every
               earlier one
    Finding  = sudden, or that median is below `share` of that of the first 5
    warning  = the reward is known and is not above its level before the fall; or sudden, and that
               median is below `share` of the expected value; otherwise info, as where both the
               start and the expected value are below 0.05 nats: such a policy is almost
               deterministic already
    critical = a warning by the reward, and the median is below `nothing`: samples no longer differ,
               so nothing can be learned
    An entropy that is mostly negative belongs to a continuous distribution. It has no zero and is
    not evaluated, nor are the 15 values after a negative one. One that a control library logs may
    belong to one, and is evaluated once 16 values have settled within 0.5 % of its highest above 0.
    Where the spread of continuous actions is logged, it is evaluated in place of the entropy, by
    its first values alone.

Units
    `share`, `ratio`: fraction of 1, of `entropy`. `sure`: nats of evidence. `nothing`: nats per
    token.

Source
    Cui et al. 2025 (arXiv:2505.22617): entropy is traded for reward, most of it in the first
    twelfth of the run, so a fall alone is no fault. Traded at a decreasing rate, it falls as a
    power of time, while a collapse is exponential. Evidence: sentinel.stats.baseline.

Defaults
    `sure` 6 is calibrated on 2.5 million points of healthy synthetic runs. On 2 million others 3
    runs reached it, 0.015 (0.005 to 0.044) per 10,000 points, none within the first 128. There an
    entropy that falls by a factor e every 100, 40 or 10 points reaches it in all of 200 runs, after
    a median of 37, 19 and 7 points; from point 30 on, every 10 points, after 21. `ratio` 0.7 is a
    loss that matters; with 0.6 a fall by e in 40 points is found 7 points later. Healthy runs lose
    up to 80 % of their entropy, and `share` 0.15 is below what remains; a successful public PPO run
    ended at 0.11 of its entropy, so the reward decides. `nothing` 0.002 nats is a choice of 5,000
    to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.signals.key_assignment import is_action_entropy
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.policy_entropy import PolicyEntropy
from sentinel.stats.shared_baselines import SharedBaselines

MIN_USUAL_LEVEL = 0.05
"""Nats per token below which there is hardly any entropy to lose."""


@dataclass
class EntropyCollapse:
    """Evaluates `entropy` or `action_std`, together with `reward` if it is logged."""

    share: float = 0.15
    ratio: float = 0.7
    sure: float = 6.0
    nothing: float = 0.002

    needs = frozenset({"entropy"})
    reads = frozenset({"action_std"})
    baselines = frozenset({"entropy"})
    signal = "entropy"
    severity = Severity.INFO
    remedy = (
        "Resume from the checkpoint before the onset. Widen {upper clip range} to 0.28, set "
        "{entropy bonus} to 0.001, or raise {sampling temperature}. Use prompts whose "
        "completions still differ."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy()
        self._departure = LevelDeparture("entropy", -1, self.ratio, self.sure)
        self._shift = LevelShift(-1, 1 / self.share)

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one entropy."""
        spread, keys = record.values.get("action_std"), record.attributes
        is_of_actions = is_action_entropy(keys.get("entropy", ""), keys.get("reward", ""))
        entropy = self._entropy.read(record.values["entropy"], spread, is_of_actions=is_of_actions)
        departure, shift = self._departure, self._shift
        if entropy is None or not (spread is not None or departure.add(entropy, baselines)):
            return None
        shift.add(entropy, record.values.get("reward"), record.step)
        if not shift.is_ready or not self._entropy.is_judged:
            return None
        is_low = shift.half_way_step is not None and self._left() < self.share
        if departure.has_departed or is_low:
            return self._finding()
        return Clear(max(departure.threshold or 0.0, self.share * shift.first_level))

    def _left(self) -> float:
        """The entropy as a share of its start."""
        return self._shift.current_level / self._shift.first_level

    def _finding(self) -> Finding:
        shift, left, level = self._shift, self._left(), self._shift.current_level
        is_sudden, low_step = self._departure.has_departed, shift.half_way_step
        expected = self._departure.expected_level or shift.first_level
        is_unrewarded = shift.is_unrewarded(expected if is_sudden else None)
        is_deep = is_sudden and level < self.share * expected
        is_dead = level < self.nothing and is_unrewarded
        has_little = max(shift.first_level, expected) < MIN_USUAL_LEVEL
        is_reported = is_dead or ((is_unrewarded or is_deep) and not has_little)
        first, now, predicted = distinct_texts(shift.first_level, level, expected)
        label, unit, key = self._entropy.description
        text = f"{label} fell from {first} to {now}{unit}, {left:.1%} of its start"
        if left >= self.share:
            text = f"{label} fell to {now}{unit}; its trend predicts {predicted}"
        onset_range = self._departure.onset_range if is_sudden else None
        onsets = (low_step, onset_range and onset_range[0])
        return Finding(
            summary=text + (", without a gain in reward." if is_unrewarded else "."),
            evidence=shift.evidence(key, expected),
            severity=(Severity.CRITICAL if is_dead else Severity.WARNING) if is_reported else None,
            onset_step=min(step for step in onsets if step is not None),
            onset_range=onset_range,
            threshold=self._departure.threshold,
        )
