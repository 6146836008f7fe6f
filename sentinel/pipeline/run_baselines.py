"""The baselines of a run: one per signal, shared by all detectors that evaluate it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, log

from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.baseline import Baseline, BaselineSettings, TrajectoryPrior
from sentinel.stats.cumulative_lr import CumulativeLearningRate
from sentinel.stats.shared_baselines import SharedBaselines

SEQUENCE_UNIT = 50.0
"""Nats per sequence that count as one nat per token, as `per_sequence` of kl_blowup."""

BASELINE_SETTINGS: Mapping[str, BaselineSettings] = {
    "kl_ref": BaselineSettings(
        TrajectoryPrior(slope=1.6, slope_sd=0.5, sigma=0.5, weight=8),
        rise_margin=0.15,
        floor=0.01,
        least=1e-3,
        min_sigma=0.15,
        young_slope=2.0,
    ),
    "entropy": BaselineSettings(
        TrajectoryPrior(slope=-0.1, slope_sd=0.3, sigma=0.12, weight=8),
        fall_margin=0.1,
        least=1e-7,
        min_sigma=0.03,
        young_slope=1.0,
    ),
    "completion_length": BaselineSettings(
        TrajectoryPrior(slope=0.0, slope_sd=0.3, sigma=0.15, weight=8),
        rise_margin=0.1,
        least=1e-3,
        min_sigma=0.03,
    ),
    "loss": BaselineSettings(
        TrajectoryPrior(slope=-0.2, slope_sd=0.3, sigma=0.05, weight=8),
        rise_margin=0.2,
        min_sigma=0.01,
    ),
    "grad_norm": BaselineSettings(
        TrajectoryPrior(slope=-0.2, slope_sd=0.4, sigma=0.3, weight=8),
        rise_margin=0.3,
        fall_margin=0.3,
        min_sigma=0.03,
    ),
    "reward": BaselineSettings(
        TrajectoryPrior(slope=0.0, slope_sd=inf, weight=0),
        fall_margin=0.0,
        is_log=False,
    ),
}
"""Priors are rounded medians of healthy synthetic runs, and margins what is of no importance.

A KL is expected to grow as a power of 0.6 to 2 of the distance travelled and is of no importance
below 0.01 nats per token. Entropy, length, loss and norms follow small powers. A reward has no
unit, so it has no prior.
"""


MAX_MISSING_RECORDS = 1000
"""A larger gap between two records is a step that was counted anew."""


@dataclass(slots=True)
class RunBaselines(SharedBaselines):
    """Baselines by signal, created at the first value.

    `priors` are trajectories of alike healthy runs by signal, in place of the general ones.
    """

    priors: Mapping[str, TrajectoryPrior] = field(default_factory=dict)
    _cumulative_lr: CumulativeLearningRate = field(default_factory=CumulativeLearningRate)
    _last_step: int = 0
    _interval: int = 0
    """Smallest number of steps between two records; 0 before there are two."""

    def update(self, record: Record, signals: Collection[str]) -> RunBaselines:
        """Add the values of a record that has `signals`; returns itself."""
        if not signals:
            return self
        values = record.values
        reward = values.get("reward")
        if reward is not None and isfinite(reward):
            self.reward_gain.add(reward)
        distance = self._cumulative_lr.add(values.get("learning_rate"), self._elapsed(record.step))
        if distance <= 0.0:
            return self
        travel, step, by_signal = log(distance), record.step, self.by_signal
        for signal in signals:
            value = values[signal]
            if isfinite(value):
                baseline = by_signal.get(signal) or self._create(signal)
                unit = 1.0
                if signal == "kl_ref" and get_kl_kind(record.attributes, signal).is_summed:
                    unit = SEQUENCE_UNIT
                baseline.update(value, travel, step, unit)
        return self

    def _elapsed(self, step: int) -> float:
        """Records since the last one, those included that the log lacks: training went on."""
        steps, self._last_step = step - self._last_step, step
        if self._interval and 0 < steps <= MAX_MISSING_RECORDS * self._interval:
            self._interval = min(self._interval, steps)
            return steps / self._interval
        if not self._interval and steps > 0 and self.by_signal:
            self._interval = steps
        return 1.0

    def _create(self, signal: str) -> Baseline:
        baseline = Baseline(BASELINE_SETTINGS[signal], self.priors.get(signal))
        self.by_signal[signal] = baseline
        return baseline
