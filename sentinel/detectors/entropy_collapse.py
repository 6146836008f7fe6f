"""Entropy collapse: the policy has become almost deterministic without a gain in reward.

Formula
    course   = ln(entropy) + `natural` * ln(number of values so far)
    sudden   = a margin CUSUM finds the course below its recent level by more than ln `recent`
    Finding  = the median of the last 8 entropies is below `share` of that of the first 5, or below
               `partly` of it and sudden
    warning  = the reward is known and is not above its start or its level before the fall, or its
               gain was lost again; or the fall is sudden and leaves less than two thirds of
               `share`; otherwise info
    critical = a warning by the reward, and the median is below `nothing`: samples no longer differ,
               so nothing can be learned
    A negative entropy, or one logged by a control library, belongs to a continuous distribution. It
    has no zero and is not evaluated.

Units
    `share`, `partly`: fraction of 1, of `entropy`. `recent`: plain factor. `natural`: exponent.
    `nothing`: nats per token.

Source
    Cui et al. 2025 (arXiv:2505.22617): entropy is traded for reward, most of it in the first
    twelfth of the run, so a fall alone is no fault. Traded at a decreasing rate, it falls as a
    power of time, while a collapse is exponential; hence the course, our own definition. CUSUM:
    Page, Biometrika 1954.

Defaults
    Healthy runs lose up to 80 % of their entropy, and `share` 0.15 is below what remains: on 60
    such synthetic runs (42,000 points) there was no finding, and on 21 public logs with an entropy
    per token none except in the 2 that collapsed, after 5 and 10 points. An entropy that falls by a
    factor e every 100, 40 or 10 points is found in 14, 17 and 20 of 20 runs, after a median of 91,
    39 and 14 points; most of the others gain reward meanwhile. `natural` 1 is the steepest slope of
    an exponential approach to a tenth; without it, 3 of 90 healthy starts were false alarms. A
    successful public PPO run ended at 0.11 of its entropy, so the reward decides. `recent` 1.5 and
    `partly` 0.5 are far from that. `nothing` 0.002 nats is a choice of 5,000 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.catalogue import normalize_key
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.policy_entropy import PolicyEntropy


@dataclass
class EntropyCollapse:
    """Evaluates `entropy`, together with `reward` if it is logged."""

    share: float = 0.15
    partly: float = 0.5
    recent: float = 1.5
    natural: float = 1.0
    nothing: float = 0.002

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    signal: ClassVar[str] = "entropy"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Resume from the checkpoint before the onset and increase exploration: a wider upper clip "
        "range (TRL epsilon_high=0.28, verl actor.clip_ratio_high=0.28), an entropy bonus (verl "
        "actor.entropy_coeff=0.001), a higher sampling temperature, or prompts whose completions "
        "still differ."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy(LevelShift(-1, self.recent, 1 / self.share, self.natural))

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one entropy."""
        logged_as = normalize_key(record.attributes.get("entropy", ""))
        if not self._entropy.add(record.values, logged_as, record.step):
            return None
        shift = self._entropy.level_shift
        if not shift.has_begun:
            return Clear()
        share = shift.current_level / shift.first_level
        has_fallen = share < self.share or (shift.has_left_recent_level and share < self.partly)
        return self._finding(share) if has_fallen else Clear()

    def _finding(self, share: float) -> Finding:
        shift = self._entropy.level_shift
        is_dead = shift.is_unrewarded and shift.current_level < self.nothing
        is_sudden = shift.has_left_recent_level and share < 2 / 3 * self.share
        severity = Severity.CRITICAL if is_dead else Severity.WARNING
        return Finding(
            summary=f"Entropy fell from {shift.first_level:.3g} to {shift.current_level:.3g} nats "
            f"per token, {share:.1%} of its start"
            + (", without a gain in reward." if shift.is_unrewarded else "."),
            evidence=shift.evidence("entropy_nats"),
            severity=severity if shift.is_unrewarded or is_sudden else None,
            onset_step=shift.onset,
        )
