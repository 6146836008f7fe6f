"""Synthetic losses, evaluations and gradient norms, healthy or with a fault.

Runs depend on the seed only. Healthy series begin with a transient, jump at changes of data, have
heavy tails and outliers, and are logged at every step, every fifth or every tenth.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import numpy as np
from support.synthetic_runs import Run, log_uniform, sft_run, student_noise

from sentinel.model.record import Event, Record
from sentinel.testing import event

MAX_HEALTHY_NORM_FACTOR = 20.0
"""A norm that is higher above its level, even a single one, is a fault."""

FAULT_PARAMETERS = {
    "loss_spike": {"mild": (1.5, 8), "moderate": (2.0, 15), "severe": (4.0, 30)},
    "loss_divergence": {"mild": (150, 0), "moderate": (40, 0), "severe": (8, 0)},
    "overfitting": {"mild": (0.08, 0), "moderate": (0.2, 0), "severe": (0.5, 0)},
    "grad_explosion": {"mild": (20, 60), "moderate": (100, 20), "severe": (1000, 5)},
    "grad_vanishing": {"mild": (1e-4, 60), "moderate": (1e-6, 20), "severe": (0.0, 5)},
}
"""By fault and severity. Spikes: height and decay in steps. Divergence: steps to double.
Overfitting: relative rise of the evaluation over a third of the run. Gradients: factor and steps to
reach it."""


def loss_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A supervised loss; `fault` is loss_spike, loss_divergence or empty."""
    run = sft_run(seed)
    if not fault:
        return run
    rng = np.random.default_rng([seed, 1])
    loss = run.series["loss"]
    size, decay = FAULT_PARAMETERS[fault][severity]
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
    """Gradient norms beside a loss; `fault` is grad_explosion, grad_vanishing or empty."""
    run = sft_run(seed)
    rng = np.random.default_rng([seed, 2])
    count = len(run.series["loss"])
    time = np.arange(count)
    start = log_uniform(rng, 0.3, 30)
    level = log_uniform(rng, 0.1, 10) * (1 + start * np.exp(-time / log_uniform(rng, 3, 60)))
    level = level * (1 + time / 50) ** rng.uniform(-0.4, 0.4)
    outliers = (rng.random(count) < 0.003) * np.log(rng.uniform(2, 8, count))
    noise = student_noise(rng, count) * log_uniform(rng, 0.08, 0.9) + outliers
    norm = level * np.exp(np.minimum(noise, log(MAX_HEALTHY_NORM_FACTOR)))
    if fault:
        factor, over = FAULT_PARAMETERS[fault][severity]
        at = int(count * rng.uniform(0.35, 0.7))
        progress = np.clip((time - at) / over, 0, 1)
        norm = norm * (np.exp(progress * log(factor)) if factor else np.where(time >= at, 0.0, 1.0))
        run.onset = (at + 1) * run.every
    run.series["grad_norm"] = norm
    return run


def evaluated_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A loss with 12 to 60 evaluations; `fault` is overfitting or empty."""
    run = sft_run(seed)
    rng = np.random.default_rng([seed, 3])
    count = len(run.series["loss"])
    time = np.arange(count)
    at = int(count * rng.uniform(0.35, 0.6))
    # Harder training data does not raise the loss on held-out data.
    level = np.minimum.accumulate(run.truth) * (1 + rng.uniform(0, 0.3))
    if fault:
        rise = FAULT_PARAMETERS[fault][severity][0] * np.maximum(time - at, 0) / (count / 3)
        level = np.where(time >= at, level[at] * (1 + rise), level)
        run.onset = (at + 1) * run.every
    noise = np.exp(rng.standard_t(5, count) * log_uniform(rng, 0.001, 0.015))
    held_out = level * noise
    interval = max(1, count // int(rng.integers(12, 60)))
    run.series["eval_loss"] = np.where(time % interval == interval - 1, held_out, np.nan)
    return run


def records(run: Run) -> Iterator[Record]:
    """Records of the run, with separate EVAL records."""
    for record in run.records():
        values = {name: x for name, x in record.values.items() if name != "eval_loss"}
        yield event(Event.STEP, record.step, time=record.time, **values)
        held_out = record.values.get("eval_loss", np.nan)
        if not np.isnan(held_out):
            yield event(Event.EVAL, record.step, time=record.time, eval_loss=held_out)
