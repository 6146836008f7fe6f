"""Complete synthetic runs: all that a trainer logs, healthy or with a fault of known onset.

While `tests/support/synthetic_runs.py` makes the one signal that a detector evaluates, here every
detector sees every run. A fault has its real side effects: endless completions are truncated and
earn less, a policy without entropy stops improving. Runs depend on the seed only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.synthetic_runs import Series

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.testing import event

REINFORCED = (
    "kl_blowup", "reward_collapse", "entropy_collapse", "length_explosion", "repetition",
    "reward_zero_variance", "policy_collapse",
)  # fmt: skip
SUPERVISED = (
    "loss_spike", "loss_divergence", "overfitting", "oscillation", "grad_explosion",
    "grad_vanishing", "nan_or_inf", "throughput_drop", "loss_plateau",
)  # fmt: skip
FAULTS = (*REINFORCED, *SUPERVISED)
EARLY = ("kl_blowup", "reward_collapse", "entropy_collapse", "length_explosion", "loss_divergence")
"""Faults that are also tested at point 30 of a short run."""

HORIZON = {
    "loss_spike": 60, "loss_divergence": 400, "reward_collapse": 100, "entropy_collapse": 200,
    "policy_collapse": 200, "repetition": 100, "throughput_drop": 100, "nan_or_inf": 10,
    "oscillation": 200, "overfitting": 10_000, "loss_plateau": 10_000, "lone_norm": 10,
    "lone_norm_and_kl": 10, "nan_from_the_start": 10, "nan_in_unknown_key": 10,
    "early_collapse": 60, "constant_reward": 100, "coin_collapse": 100, "stalled_reward": 10_000,
    "flat_in_few_lines": 10_000, "flat_signed": 10_000, "pair_chance": 10_000,
    "mismatch_first": 200, "mismatch_after": 200,
}  # fmt: skip
"""Logged points after the onset in which an alarm counts; 150 for other faults."""

SAMPLED = 5
"""Points between two evaluations of texts."""


@dataclass
class FullRun:
    """A run: the values of each point, the events between, and its fault.

    `onset` and `cliff` are points, counted from 0; a point is `every` steps. `truth` is the loss
    without noise. `true_statements` are detectors whose warnings are true although nothing broke.
    """

    seed: int
    fault: str = ""
    severity: str = ""
    series: dict[str, Series] = field(default_factory=dict)
    onset: int | None = None
    cliff: int | None = None
    every: int = 1
    truth: Series = field(default_factory=lambda: np.zeros(0))
    save_every: int = 100
    eval_every: int = 0
    settings: dict[str, float] = field(default_factory=dict)
    true_statements: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(next(iter(self.series.values())))

    @property
    def ends(self) -> int:
        """Points that are evaluated: none after the horizon."""
        if self.onset is None:
            return len(self)
        return min(len(self), self.onset + HORIZON.get(self.fault, 150) + 1)

    def point(self, step: int) -> int:
        """Index of the logged point of a step."""
        return step // self.every - 1

    def records(self) -> Iterator[Record]:
        separate = {"eval_loss", "sample_repetition"}
        step_times = self.series.get("step_time", np.ones(len(self)))
        clock = np.cumsum(step_times) * self.every
        if self.settings:
            yield event(Event.START, 0, **self.settings)
        for at in range(self.ends):
            step, now = (at + 1) * self.every, float(clock[at])
            values = {k: float(x[at]) for k, x in self.series.items() if k not in separate}
            values |= {"global_step": float(step), "optimizer_steps": float(step)}
            yield Record("run", WHOLE_RUN, step, now, Event.STEP, values)
            if "sample_repetition" in self.series and at % SAMPLED == 0:
                repetition = float(self.series["sample_repetition"][at])
                yield event(Event.SAMPLE, step, time=now, sample_repetition=repetition)
            if self.eval_every and at % self.eval_every == self.eval_every - 1:
                held_out = float(self.series["eval_loss"][at])
                yield event(Event.EVAL, step, time=now, eval_loss=held_out)
            if at % self.save_every == self.save_every - 1:
                yield event(Event.SAVE, step, time=now)
        if self.ends == len(self):
            finished = {"outcome": "finished"}
            yield Record("run", WHOLE_RUN, step, now, Event.STOP, attributes=finished)
