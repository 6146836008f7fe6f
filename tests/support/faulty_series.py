"""Losses, evaluations and gradient norms of known truth: healthy ones, and ones that fall ill.

All randomness is the seed's. The healthy ones begin with a transient, jump at changes of data, have
heavy tails and wild single values, and are logged at every step or at every tenth.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import numpy as np
from support.synthetic_runs import Run, Series, _between, _noise, sft_run

from sentinel.model.record import Event, Record
from sentinel.testing import event

GRADES = {
    "loss_spike": {"mild": (1.5, 8), "moderate": (2.0, 15), "severe": (4.0, 30)},
    "loss_divergence": {"mild": (150, 0), "moderate": (40, 0), "severe": (8, 0)},
    "overfitting": {"mild": (0.08, 0), "moderate": (0.2, 0), "severe": (0.5, 0)},
    "grad_explosion": {"mild": (20, 60), "moderate": (100, 20), "severe": (1000, 5)},
    "grad_vanishing": {"mild": (1e-4, 60), "moderate": (1e-6, 20), "severe": (0.0, 5)},
}
"""Spikes: height, and steps in which they decay. Divergence: steps to double. Over-fitting: share
that the evaluation rises by over a third of the run. Gradients: factor, and steps to reach it."""


def loss_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A supervised loss; `fault` is loss_spike, loss_divergence or none."""
    run = sft_run(seed)
    if not fault:
        return run
    rng = np.random.default_rng([seed, 1])
    loss = run.series["loss"]
    size, decay = GRADES[fault][severity]
    at = int(len(loss) * rng.uniform(0.35, 0.7))
    since = np.arange(len(loss)) * run.every - at * run.every
    if fault == "loss_spike":
        factor = 1 + (size - 1) * np.exp(-np.maximum(since, 0) / decay)
    else:
        factor = np.exp(np.minimum(np.maximum(since, 0) * log(2) / size, log(6)))
    run.series["loss"] = np.where(since >= 0, loss * factor, loss)
    run.onset = (at + 1) * run.every
    return run


def norm_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """Gradient norms beside a loss; `fault` is grad_explosion, grad_vanishing or none."""
    run = sft_run(seed)
    rng = np.random.default_rng([seed, 2])
    count = len(run.series["loss"])
    time = np.arange(count)
    start = _between(rng, 0.3, 30)
    level = _between(rng, 0.1, 10) * (1 + start * np.exp(-time / _between(rng, 3, 60)))
    level = level * (1 + time / 50) ** rng.uniform(-0.4, 0.4)
    wild = (rng.random(count) < 0.003) * np.log(rng.uniform(5, 60, count))
    norm = level * np.exp(_noise(rng, count) * _between(rng, 0.08, 0.9) + wild)
    if fault:
        factor, over = GRADES[fault][severity]
        at = int(count * rng.uniform(0.35, 0.7))
        way = np.clip((time - at) / over, 0, 1)
        norm = norm * (np.exp(way * log(factor)) if factor else np.where(time >= at, 0.0, 1.0))
        run.onset = (at + 1) * run.every
    run.series["grad_norm"] = norm
    return run


def evaluated_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A loss with 12 to 60 evaluations on the way; `fault` is overfitting or none."""
    run = sft_run(seed)
    rng = np.random.default_rng([seed, 3])
    count = len(run.series["loss"])
    time = np.arange(count)
    at = int(count * rng.uniform(0.35, 0.6))
    # Harder data in training is not harder data held out.
    level = np.minimum.accumulate(run.truth) * (1 + rng.uniform(0, 0.3))
    if fault:
        rise = GRADES[fault][severity][0] * np.maximum(time - at, 0) / (count / 3)
        level = np.where(time >= at, level[at] * (1 + rise), level)
        run.onset = (at + 1) * run.every
    noise = np.exp(rng.standard_t(5, count) * _between(rng, 0.001, 0.015))
    held_out = level * noise
    apart = max(1, count // int(rng.integers(12, 60)))
    run.series["eval_loss"] = np.where(time % apart == apart - 1, held_out, np.nan)
    return run


def records(run: Run) -> Iterator[Record]:
    """Records of the run, evaluations as such."""
    for record in run.records():
        values = {name: x for name, x in record.values.items() if name != "eval_loss"}
        yield event(Event.STEP, record.step, time=record.time, **values)
        held_out = record.values.get("eval_loss", np.nan)
        if not np.isnan(held_out):
            yield event(Event.EVAL, record.step, time=record.time, eval_loss=held_out)


MAKERS = {
    "loss_spike": loss_run,
    "loss_divergence": loss_run,
    "overfitting": evaluated_run,
    "grad_explosion": norm_run,
    "grad_vanishing": norm_run,
}
"""Who makes the runs that a detector is measured on."""

__all__ = ["GRADES", "MAKERS", "Series", "evaluated_run", "loss_run", "norm_run", "records"]
