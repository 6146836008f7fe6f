"""Entropy explosion: the policy unlearns to prefer any token over another.

Formula
    risen    = a margin CUSUM finds ln(entropy) above its own recent level by more than ln `recent`,
               or the median of the last 8 is over `factor` times that of the first 5
    Finding  = risen, and the median is at least 1.5 times the first 5
    warning  = the reward is known, and is not above where it began or where it was before, or has
               been lost again; otherwise info: a policy that explores more and earns more is well
    Entropy that is negative, or logged by a library for control, is not judged.

Units
    `recent`, `factor`: plain factors of `entropy`.

Source
    Reports of runs whose entropy rises until the text is noise (verl#2738, Search-R1#162), and of
    the clip range that lets it rise on purpose (DAPO, arXiv:2503.14476).

Defaults
    On 120 healthy synthetic runs (84,000 points) there was none, and on 21 public logs one warning,
    in a run whose text had become noise. An entropy that doubles every 30 or 10 points is found in
    39 and 40 of 40 runs, by the median after 46 and 18 points. Runs that clip high on purpose end
    at up to 2.5 times their entropy, and `factor` 3 is above that; `recent` 2 within a hundred
    points is not a matter of exploring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.catalogue import normalize_key
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.policy_entropy import PolicyEntropy

MIN_FACTOR = 1.5
"""Factor over its beginning below which no entropy has exploded, whatever it did lately."""


@dataclass
class EntropyExplosion:
    """Judges `entropy`, with `reward` where it is logged."""

    recent: float = 2.0
    factor: float = 3.0

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    signal: ClassVar[str] = "entropy"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Go back to the checkpoint before the onset. Lower the entropy bonus (verl "
        "actor.entropy_coeff, OpenRLHF --entropy_loss_coef) or the upper clip (TRL epsilon_high, "
        "verl actor.clip_ratio_high), halve the learning rate, and check that the engine that "
        "samples has the trainer's weights."
    )

    def __post_init__(self) -> None:
        self._entropy = PolicyEntropy(LevelShift(1, self.recent, self.factor))

    def update(self, record: Record) -> DetectorOutput:
        """Judge one entropy."""
        logged_as = normalize_key(record.attributes.get("entropy", ""))
        if not self._entropy.add(record.values, logged_as, record.step):
            return None
        seen = self._entropy.level_shift
        if not seen.has_begun:
            return Clear()
        times = seen.current_level / seen.first_level
        risen = times > MIN_FACTOR and (seen.has_left_recent_level or times > self.factor)
        return self._finding(times) if risen else Clear()

    def _finding(self, times: float) -> Finding:
        seen, merit = self._entropy.level_shift, self._entropy.level_shift.reward_gain
        told: dict[str, float | str] = {"entropy": seen.current_level, "first": seen.first_level}
        told["usual"] = seen.expected_level
        if merit.is_ready:
            told |= {"reward": merit.current_level, "reward_first": merit.first_level}
        return Finding(
            summary=f"Entropy rose from {seen.first_level:.3g} to {seen.current_level:.3g} nats per token, "
            f"{times:.3g} times where it began"
            + (", and the reward did not." if seen.is_unrewarded else "."),
            evidence=told,
            severity=Severity.WARNING if seen.is_unrewarded else None,
            onset_step=seen.onset,
        )
