"""Likelihood displacement: preference training makes the chosen answers less likely.

Formula
    Finding  = the reward of the chosen answers has left its usual level downwards by `fall`, as in
               `sentinel.stats.level_guard`, and is below -`fall`, while the margin over the
               rejected answers has grown

Units
    `fall`: unit of the reward, which is the KL coefficient times nats per answer.

Source
    Razin et al. 2024 (arXiv:2410.08847), Pal et al. 2024 (arXiv:2402.13228): a loss of the margin
    alone may lower the likelihood of both answers, and raises that of others. A small fall is usual
    and harmless, so it is info.

Defaults
    `fall` 3 is, at a KL coefficient of 0.1, an answer that is exp(30) times less likely. In
    synthetic logs with the keys of TRL, 24 a size, a reward that falls by 4, 12 and 40 while the
    margin grows is found in at least 70, 95 and 100 %; no healthy log, whose reward falls by 1.5,
    has a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from sentinel.detectors._guarded_signals import GuardedSignals
from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_guard import LevelGuard
from sentinel.stats.reward_gain import RewardGain


@dataclass
class LikelihoodDisplacement(GuardedSignals):
    """Evaluates `reward_chosen` and `reward_margin`."""

    fall: float = 3.0

    needs = frozenset({"reward_chosen", "reward_margin"})
    signal = "reward_chosen"
    severity = Severity.INFO
    remedy = (
        "Raise {KL coefficient}, or lower {learning rate}. Add the likelihood of the chosen "
        "answers to the loss. Leave out pairs whose two answers are nearly the same."
    )

    def __post_init__(self) -> None:
        self._guards = [("reward_chosen", LevelGuard(-1, self.fall, -self.fall))]
        self._margin = RewardGain()

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record with both signals."""
        output = super().update(record)
        if output is not None and isfinite(record.values["reward_margin"]):
            self._margin.add(record.values["reward_margin"])
        is_grown = self._margin.is_ready and self._margin.has_gained
        return CLEAR if isinstance(output, Finding) and not is_grown else output
