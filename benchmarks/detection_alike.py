"""Runs of one project and configuration: the trajectory is the family's, varied from run to run."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from detection_factories import fill_run
from detection_run import FullRun

VARIATION = 0.025
"""Deviation of a drawn parameter from the family's, as a share of its range.

Such a parameter of a trajectory differs by 10 to 20 % from run to run, as between seeds.
"""


class AlikeGenerator:
    """Single numbers are those of the family, varied; arrays, the noise, are the run's own."""

    def __init__(self, family: np.random.Generator, run: np.random.Generator) -> None:
        self._family, self._run = family, run

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        """A number near the family's, or an array of the run's own numbers."""
        if size is not None:
            return self._run.uniform(low, high, size)
        varied = self._run.normal(self._family.uniform(low, high), VARIATION * (high - low))
        return float(np.clip(varied, low, high))

    def random(self, size: Any = None) -> Any:
        return self._family.random() if size is None else self._run.random(size)

    def choice(self, options: Any, *, p: Any = None) -> Any:
        return self._family.choice(options, p=p)

    def integers(self, low: int, high: int | None = None) -> Any:
        return self._family.integers(low, high)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def make_alike_run(family_seed: int, index: int, fault: str = "", severity: str = "") -> FullRun:
    """Run number `index` of a family of RL runs: the same settings, another seed."""
    family = np.random.default_rng([family_seed, 19])
    own = np.random.default_rng([family_seed, 20, index])
    run = FullRun(family_seed + 1000 * index, fault, severity)
    fill_run(run, "rl", cast("np.random.Generator", AlikeGenerator(family, own)))
    run.settings["beta"] = float(np.random.default_rng([family_seed, 21]).uniform(0.001, 0.1))
    return run
