"""Entropy collapse: the policy has become almost deterministic without a gain in reward.

Formula
    sudden   = the baseline of the entropy, a power of the sum of the learning rates fitted to the
               run so far, has `sure` nats of evidence that the entropy departs downwards, and the
               median of the last 8 is `ratio` of the expected value or less
    Finding  = sudden, or that median is below `share` of that of the first 5
    warning  = the reward is known and is not above its start or its level before the fall, or its
               gain was lost again; or sudden, and that median is below `share` of the
               expected value; otherwise info
    critical = a warning by the reward, and the median is below `nothing`: samples no longer differ,
               so nothing can be learned
    An entropy that is mostly negative belongs to a continuous distribution. It has no zero and is
    not evaluated, nor are the 15 values after a negative one. One that a control library logs may
    belong to one, and is evaluated once 16 values have settled within 0.5 % of its highest above 0.

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
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.signals.catalogue import normalize_key
from sentinel.stats.baseline import Baseline, Direction
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.onset_tracker import OnsetTracker
from sentinel.stats.policy_entropy import PolicyEntropy
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.shared_baselines import SharedBaselines

THRESHOLD_RENEWAL = 8
"""Values after which the threshold is renewed."""


@dataclass
class EntropyCollapse:
    """Evaluates `entropy`, together with `reward` if it is logged."""

    share: float = 0.15
    ratio: float = 0.7
    sure: float = 6.0
    nothing: float = 0.002

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    baselines: ClassVar[frozenset[str]] = frozenset({"entropy"})
    signal: ClassVar[str] = "entropy"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Resume from the checkpoint before the onset. Widen {upper clip range} to 0.28, set "
        "{entropy bonus} to 0.001, or raise {sampling temperature}. Use prompts whose "
        "completions still differ."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy()
        self._departure = LevelDeparture(-1, self.ratio, self.sure)
        self._low = OnsetTracker()
        self._threshold: float | None = None

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one entropy."""
        logged_as = normalize_key(record.attributes.get("entropy", ""))
        entropy = self._entropy.read(record.values["entropy"], logged_as)
        baseline = baselines.get("entropy")
        if entropy is None or baseline is None or baseline.fall is None:
            return None
        self._departure.add(entropy, baseline, baseline.fall, baselines.reward_gain)
        if not self._departure.is_ready:
            return None
        output = self._evaluate(
            entropy, baseline, baseline.fall, baselines.reward_gain, record.step
        )
        return output if self._entropy.is_discrete else None

    def _evaluate(
        self, entropy: float, baseline: Baseline, fall: Direction, gain: RewardGain, step: int
    ) -> Clear | Finding:
        departure = self._departure
        # A fall to a small share begins about where half of it, as a factor, is gone.
        half_way = self.share**0.5
        if (
            self._low.step is None
            and not departure.is_off_course
            and entropy >= half_way * departure.first_level
        ):
            return self._cleared(baseline, fall)
        left = departure.current_level / departure.first_level
        self._low.update(step, holds=left < half_way)
        if not departure.is_off_course and left >= self.share:
            return self._cleared(baseline, fall)
        return self._finding(left, gain)

    def _cleared(self, baseline: Baseline, fall: Direction) -> Clear:
        if baseline.count % THRESHOLD_RENEWAL == 0 or self._threshold is None:
            least = self.share * self._departure.first_level
            self._threshold = max(baseline.threshold(fall, self.sure) or 0.0, least)
        return Clear(self._threshold)

    def _finding(self, left: float, gain: RewardGain) -> Finding:
        departure = self._departure
        is_unrewarded, level = departure.is_unrewarded(gain), departure.current_level
        is_dead = is_unrewarded and level < self.nothing
        is_deep = departure.is_off_course and level < self.share * departure.expected_level
        severity = Severity.CRITICAL if is_dead else Severity.WARNING
        first, now, expected = distinct_texts(
            departure.first_level, level, departure.expected_level
        )
        text = f"Entropy fell from {first} to {now} nats per token, {left:.1%} of its start"
        if left >= self.share:
            text = f"Entropy fell to {now} nats per token; its trend predicts {expected}"
        low, onset_range = self._low.step, departure.onset_range
        onset = onset_range[0] if onset_range else low
        return Finding(
            summary=text + (", without a gain in reward." if is_unrewarded else "."),
            evidence=departure.evidence("entropy_nats", gain),
            severity=severity if is_unrewarded or is_deep else None,
            onset_step=onset if low is None or onset is None else min(onset, low),
            onset_range=onset_range,
            threshold=self._threshold,
        )
