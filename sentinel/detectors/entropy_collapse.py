"""Entropy collapse: the policy has become certain, and is none the better for it.

Formula
    course   = ln(entropy) + `natural` * ln(points so far)
    sudden   = a margin CUSUM finds the course below its own recent level by more than ln `recent`
    Finding  = the median of the last 8 entropies is under `share` of that of the first 5, or under
               `partly` of it and sudden
    warning  = the reward is known, and is not above where it began or where it was before, or has
               been lost again; or the fall is sudden and leaves under two thirds of `share`;
               otherwise info
    critical = the median is under `nothing` as well: no two samples differ, and nothing can be
               learnt any more
    Entropy that is negative, or logged by a library for control, is that of a continuous
    distribution: it has no zero, and is not judged.

Units
    `share`, `partly`: share of 1, of `entropy`. `recent`: a plain factor. `natural`: an exponent.
    `nothing`: nats per token.

Source
    Cui et al. 2025 (arXiv:2505.22617): entropy is spent for reward, most of it in the first twelfth
    of the run, so that a fall alone is no fault. Spent at a rate that slackens, it falls as some
    power of time, while a collapse is exponential: hence the course, which is ours. CUSUM after
    Page, Biometrika 1954.

Defaults
    Healthy runs spend up to 80 % of their entropy, and `share` 0.15 is below what is left: on 60
    such synthetic runs (42,000 points) there was no finding, and on 21 public logs with an entropy
    per token none but in the 2 that collapsed, 5 and 10 points after. An entropy that falls e-fold
    every 100, 40 or 10 points is found in 14, 17 and 20 of 20 runs, by the median after 91, 39 and
    14 points; of the others most earn more meanwhile. `natural` 1 is the steepest that an
    exponential approach to a tenth comes to; without it, 3 of 90 healthy beginnings were false
    alarms. A public run of PPO that succeeded ended at 0.11 of its entropy, which is why the reward
    decides. `recent` 1.5 and
    `partly` 0.5 are well short of that. `nothing` 0.002 nats is a choice of 5,000 to 1.
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
    """Judges `entropy`, with `reward` where it is logged."""

    share: float = 0.15
    partly: float = 0.5
    recent: float = 1.5
    natural: float = 1.0
    nothing: float = 0.002

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    signal: ClassVar[str] = "entropy"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Go back to the checkpoint before the onset, and keep the policy exploring: a wider upper "
        "clip (TRL epsilon_high=0.28, verl actor.clip_ratio_high=0.28), an entropy bonus (verl "
        "actor.entropy_coeff=0.001), a higher sampling temperature, or prompts that it does not "
        "answer alike every time."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy(LevelShift(-1, self.recent, 1 / self.share, self.natural))

    def update(self, record: Record) -> DetectorOutput:
        """Judge one entropy."""
        logged_as = normalize_key(record.attributes.get("entropy", ""))
        if not self._entropy.add(record.values, logged_as, record.step):
            return None
        seen = self._entropy.level_shift
        if not seen.has_begun:
            return Clear()
        share = seen.current_level / seen.first_level
        fallen = share < self.share or (seen.has_left_recent_level and share < self.partly)
        return self._finding(share) if fallen else Clear()

    def _finding(self, share: float) -> Finding:
        seen = self._entropy.level_shift
        told: dict[str, float | str] = {"entropy": seen.current_level, "first": seen.first_level}
        told["usual"] = seen.expected_level
        if seen.reward_gain.is_ready:
            told |= {
                "reward": seen.reward_gain.current_level,
                "reward_first": seen.reward_gain.first_level,
            }
        dead = seen.is_unrewarded and seen.current_level < self.nothing
        bad = seen.is_unrewarded or (seen.has_left_recent_level and share < 2 / 3 * self.share)
        loud = Severity.CRITICAL if dead else Severity.WARNING
        return Finding(
            summary=f"Entropy fell from {seen.first_level:.3g} to {seen.current_level:.3g} nats per token, "
            f"{share:.1%} of where it began" + (", for no reward." if seen.is_unrewarded else "."),
            evidence=told,
            severity=loud if bad else None,
            onset_step=seen.onset,
        )
