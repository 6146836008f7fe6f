"""Rollout staleness: the samples are from a much earlier policy than usual.

Formula
    Finding  = the level of a signal is past its bound, or has left its usual one, as in
               `sentinel.stats.level_guard`:
               mean and highest number of versions between sampling and training: by `later` times,
               and over 2, or over `limit` (the mean) and 4 * `limit` (the highest);
               share of stale samples: by a quarter;
               effective sample size: by a quarter, and below half of the samples, or below a fifth
    info     = the highest number and the share alone

Units
    `later`: plain factor. `limit`: policy versions.

Source
    Fu et al. 2025 (arXiv:2505.24298): asynchronous training keeps its quality up to a staleness of
    about 8 with a decoupled objective, and loses some without as of 1.

Defaults
    `later` 2 and `limit` 16, twice the staleness that keeps the quality: a staleness that is
    configured is constant and no fault. In synthetic logs with the keys of AReaL, verl, prime-rl
    and slime, 24 a size, a mean that rises from about 1 to 3, 7 and 15 is found in at least 70, 95
    and 100 %; no healthy log has a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.detectors._guarded_signals import GuardedSignals
from sentinel.model.finding import Severity
from sentinel.stats.level_guard import LevelGuard

HIGHEST_FACTOR = 4.0
"""Highest staleness of a sample over the mean: rollouts of one batch differ in length."""


@dataclass
class RolloutStaleness(GuardedSignals):
    """Evaluates the age of the samples that are trained on, in policy versions."""

    later: float = 2.0
    limit: float = 16.0

    steps_with = frozenset({
        "rollout_staleness", "rollout_staleness_max", "stale_fraction", "effective_sample_fraction",
    })  # fmt: skip
    reads = steps_with
    severities: ClassVar[dict[str, Severity]] = dict.fromkeys(
        ("rollout_staleness_max", "stale_fraction"), Severity.INFO
    )
    signal = "rollout_staleness"
    remedy = (
        "Check that the sampling engines get new weights, and that none of them hangs. Lower the "
        "highest staleness that the trainer accepts, or give sampling more GPUs. Enable "
        "{importance-sampling correction}."
    )

    def __post_init__(self) -> None:
        highest = HIGHEST_FACTOR * self.limit
        self._guards = [
            ("rollout_staleness", LevelGuard(1, self.later, 2.0, self.limit, least=0.5)),
            ("effective_sample_fraction", LevelGuard(-1, 0.25, 0.5, 0.2)),
            ("rollout_staleness_max", LevelGuard(1, self.later, 4.0, highest, least=0.5)),
            ("stale_fraction", LevelGuard(1, 0.25, 0.5)),
        ]
