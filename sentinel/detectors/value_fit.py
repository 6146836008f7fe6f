"""Unfit value model: the value model predicts returns worse than before, or than a constant.

Formula
    Finding  = after `warm` values, the median of the last 32 explained variances is below `least`;
               or the level of a signal has left its usual one, as in `sentinel.stats.level_guard`:
               explained variance: by `fall`, and below 0.5;
               value loss: by `growth` times, and over the square of the largest reward so far, of
               texts over an eighth of it, while that reward does not grow and the explained
               variance is below 0.5 or unknown;
               Q-values: or over ten times that reward, above 1, of an episode, after 64 values;
               spread of the advantages: by `growth` times, relative to the largest reward
    warning  = the value loss of texts, and Q-values: single episodes of a game may have any reward

Units
    `least`, `fall`: fraction of the variance of the returns, below 0 if a constant predicts better.
    `warm`: logged values. `growth`: plain factor.

Source
    Explained variance, 1 - Var(return - value) / Var(return), as logged by control libraries.
    Advantages from a misleading value model are noisier than plain returns, which is no immediate
    harm: info. The variance of returns is at most a quarter of the square of their range
    (Popoviciu's inequality, 1935); a larger loss, which grows, is that of a model that diverges. A
    loss that grows with the square of the reward is no fault. A Q-value is what is left to earn of
    an episode, so that one beyond all returns is the estimate's own (Thrun and Schwartz 1993).

Defaults
    At `least` 0 a constant is as good. `warm` 64: value models of healthy runs start below. `fall`
    0.3 and `growth` 4 are several times the noise of both. In synthetic logs with the keys of verl,
    24 a size, a loss that grows 10, 100 and 1000 times, a variance that falls by 0.45, 0.8 and 2,
    and a spread that grows 6, 20 and 100 times are found in at least 70, 95 and 100 %; no healthy
    log has a finding. In the public logs of three labelled sets there is no warning.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import ClassVar

from sentinel.detectors._guarded_signals import TEXT_SIGNALS, GuardedSignals
from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import STEP, Record
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.level_guard import LevelGuard

FIT_VARIANCE = 0.5
"""Explained variance of a model that is useful, whatever its loss."""

NO_MODEL_LOSS = 1.0
"""Largest variance of returns within the largest reward, positive or negative: no constant in their
middle has a larger squared error."""

NO_MODEL_TEXT_LOSS = 0.125
"""The same for texts, whose returns are from 0 to 1; their trainers log half of the squared error.
"""

MAX_RETURNS = 10.0
"""Largest mean return of an episode that a Q-value may be: what is left of one may exceed its sum,
where rewards have both signs."""

EPISODE_PATTERN = re.compile(r"ep_rew|episod|return", re.IGNORECASE)
"""Names of the reward of an episode, not of one of its steps."""

SCALES = {
    "value_loss": "Relative to the square of the largest reward, the ",
    "q_value": "Relative to the largest reward, the ",
    "advantage_std": "Relative to the largest reward, the ",
}
"""Words for what a signal is divided by."""

GROWTH_RECORDS = 64
"""Records in which a reward that grows excuses a loss that does."""

REWARD_GROWTH = 1.2
"""Factor by which the largest reward then grows."""


@dataclass
class ValueFit(GuardedSignals):
    """Evaluates `explained_variance`, `value_loss`, `q_value` and `advantage_std`."""

    least: float = 0.0
    warm: int = 64
    fall: float = 0.3
    growth: float = 4.0

    steps_with = frozenset({
        "explained_variance", "value_loss", "q_value", "advantage_std",
    })  # fmt: skip
    reads = steps_with
    signal = "explained_variance"
    severity = Severity.INFO
    remedy = (
        "Lengthen {value model warm-up}, and raise {value model learning rate}. Bound the "
        "rewards. Check that values and returns belong to the same steps."
    )
    remedies: ClassVar[dict[str, str]] = {
        "value_loss": "Lower {value model learning rate}, and clip its gradient. Bound the rewards "
        "and returns. Resume from the checkpoint before the onset.",
        "q_value": "Lower {value model learning rate}, and update the target network more slowly. "
        "Use the lower of two value models, and bound the rewards.",
    }

    def __post_init__(self) -> None:
        self._recent = KOfN(32, below=True)
        self._count = 0
        self._writes_texts = False
        self._largest_rewards = deque([0.0], maxlen=GROWTH_RECORDS)
        self._guards = [
            ("value_loss", LevelGuard(1, self.growth, 1.0, least=1e-12)),
            ("q_value", LevelGuard(1, self.growth, MAX_RETURNS, MAX_RETURNS, least=1e-6)),
            ("explained_variance", LevelGuard(-1, self.fall, FIT_VARIANCE)),
            ("advantage_std", LevelGuard(1, self.growth, least=1e-6)),
        ]

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record."""
        if record.event is not STEP or self.steps_with.isdisjoint(record.values):
            return None
        guarded = super().update(record)
        unfit = self._worse_than_constant(record)
        if not isinstance(guarded, Finding):
            return unfit if isinstance(unfit, Finding) else guarded
        signal, text = guarded.signal or "", guarded.summary
        if signal in SCALES:
            text = f"{SCALES[signal]}{text[0].lower()}{text[1:]}"
        is_warning = signal == ("value_loss" if self._writes_texts else "q_value")
        severity = Severity.WARNING if is_warning else guarded.severity
        return replace(guarded, summary=text, severity=severity)

    def guarded_values(self, record: Record) -> dict[str, float]:
        """Explained variance, and relative to the largest reward advantages and Q-values, and to
        its square the value loss.
        """
        values = record.values
        self._writes_texts = self._writes_texts or not TEXT_SIGNALS.isdisjoint(values)
        reward, explained = values.get("reward", 0.0), values.get("explained_variance")
        if isfinite(reward):
            self._largest_rewards.append(max(self._largest_rewards[-1], abs(reward)))
        guarded = {}
        if explained is not None and explained <= 1.0:
            guarded["explained_variance"] = explained
        scale, before = self._largest_rewards[-1], self._largest_rewards[0]
        is_doubtful = explained is None or explained < FIT_VARIANCE
        is_steady = 0.0 < scale <= REWARD_GROWTH * before
        if is_steady and "value_loss" in values and is_doubtful:
            bound = NO_MODEL_TEXT_LOSS if self._writes_texts else NO_MODEL_LOSS
            guarded["value_loss"] = values["value_loss"] / scale / scale / bound
        # Returns within 1 may be means of rare successes.
        is_return = scale > 1.0 and EPISODE_PATTERN.search(record.attributes.get("reward", ""))
        if is_steady and is_return and "q_value" in values:
            guarded["q_value"] = abs(values["q_value"]) / scale
        if scale and "advantage_std" in values:
            guarded["advantage_std"] = values["advantage_std"] / scale
        return guarded

    def _worse_than_constant(self, record: Record) -> DetectorOutput:
        explained = record.values.get("explained_variance")
        if explained is None or not -inf < explained <= 1.0:
            return None
        is_low = self._recent.add(explained, self.least, record.step)
        self._count += 1
        if self._count < self.warm or not is_low:
            return None if self._count < self.warm else CLEAR
        median = self._recent.median
        return Finding(
            summary=f"Explained variance of the value model is {median:.3g} (median of the last "
            "32), worse than a constant prediction.",
            evidence={"explained_variance": explained, "explained_variance_median_of_32": median},
            onset_step=self._recent.onset,
        )
