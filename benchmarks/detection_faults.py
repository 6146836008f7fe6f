"""The effect of each fault on a run, in three severities.

`elapsed` is the number of points since the onset, 0 before it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
from detection_run import FullRun
from support.faulty_series import FAULT_PARAMETERS
from support.policy_runs import DOUBLING_POINTS, ENTROPY_DECAY_POINTS, MAX_LENGTH_FACTOR
from support.synthetic_runs import Series

CLIFF_LAG_POINTS = {"mild": 80, "moderate": 40, "severe": 12}
"""Points from the onset of a policy collapse, in the KL, to the cliff of the reward."""


def _kl_blowup(run: FullRun, elapsed: Series, _gain: float) -> None:
    doubling_points, limit = {"mild": (60, 30), "moderate": (20, 100), "severe": (5, 1000)}[
        run.severity
    ]
    run.series["kl_ref"] *= np.exp(np.minimum(elapsed * log(2) / doubling_points, log(limit)))


def _reward_collapse(run: FullRun, elapsed: Series, gain: float) -> None:
    lost, over = {"mild": (0.5, 40), "moderate": (0.8, 15), "severe": (1.2, 3)}[run.severity]
    run.series["reward"] -= gain * lost * np.minimum(1, elapsed / over)


def _entropy_collapse(run: FullRun, elapsed: Series, gain: float) -> None:
    """Entropy and reward spread vanish, and the reward falls slightly."""
    fall = elapsed / ENTROPY_DECAY_POINTS[run.severity]
    run.series["entropy"] *= np.maximum(np.exp(-fall), 0.01)
    left = np.maximum(np.exp(-fall), 0.02)
    run.series["frac_zero_std"] = 1 - (1 - run.series["frac_zero_std"]) * left
    run.series["reward_std"] *= left
    run.series["reward"] -= gain * 0.3 * (1 - left)


def _length_explosion(run: FullRun, elapsed: Series, _gain: float) -> None:
    growth = np.minimum(
        2.0 ** (elapsed / DOUBLING_POINTS[run.severity]), MAX_LENGTH_FACTOR[run.severity]
    )
    run.series["completion_length"] *= growth


def _repetition(run: FullRun, elapsed: Series, _gain: float) -> None:
    limit, over = {"mild": (0.4, 100), "moderate": (0.65, 30), "severe": (0.9, 5)}[run.severity]
    normal = run.series["sample_repetition"]
    run.series["sample_repetition"] = normal + (1 - normal) * limit * np.minimum(1, elapsed / over)


def _zero_variance(run: FullRun, elapsed: Series, gain: float) -> None:
    """Prompts that no completion solves, so the reward is lower; at its best they were solved."""
    zero_share, over = {"mild": (0.9, 60), "moderate": (0.97, 20), "severe": (1.0, 3)}[run.severity]
    share = zero_share * np.minimum(1, elapsed / over)
    run.series["frac_zero_std"] = 1 - (1 - run.series["frac_zero_std"]) * (1 - share)
    run.series["reward_std"] *= np.maximum(1 - share, 0)
    run.series["grad_norm"] *= np.maximum(1 - share, 1e-6)
    run.series["reward"] -= gain * 0.3 * share


def _policy_collapse(run: FullRun, elapsed: Series, gain: float) -> None:
    """The KL grows, after a lag the reward falls, then texts become long and repetitive.

    In half of the runs the size of a step and the gradient grow from the onset on, too.
    """
    lag = CLIFF_LAG_POINTS[run.severity]
    _kl_blowup(run, elapsed, gain)
    if run.seed % 2:
        grown = np.minimum(1, elapsed / lag)
        run.series["grad_norm"] *= 1 + 4 * grown
        if "clip_fraction" in run.series:
            run.series["clip_fraction"] += (1 - run.series["clip_fraction"]) * 0.5 * grown
            run.series["kl_old"] *= 1 + 9 * grown
    after_cliff, after_texts = np.maximum(elapsed - lag, 0), np.maximum(elapsed - int(1.5 * lag), 0)
    run.series["reward"] -= gain * 1.1 * np.minimum(1, after_cliff / max(3, lag // 4))
    run.series["entropy"] *= np.maximum(np.exp(-after_cliff / lag), 0.1)
    run.series["completion_length"] *= np.minimum(1 + after_texts / 10, 4)
    normal = run.series["sample_repetition"]
    run.series["sample_repetition"] = normal + (1 - normal) * 0.7 * np.minimum(1, after_texts / 20)
    run.cliff = (run.onset or 0) + lag


def _loss_spike(run: FullRun, elapsed: Series, _spread: float) -> None:
    size, decay = FAULT_PARAMETERS["loss_spike"][run.severity]
    is_faulty = np.arange(len(run)) >= (run.onset or 0)
    left = np.where(is_faulty, np.exp(-elapsed * run.every / decay), 0)
    run.series["loss"] *= 1 + (size - 1) * left
    run.series["grad_norm"] *= 1 + (3 * size - 1) * left


def _loss_divergence(run: FullRun, elapsed: Series, _spread: float) -> None:
    growth = elapsed * run.every * log(2) / FAULT_PARAMETERS["loss_divergence"][run.severity][0]
    run.series["loss"] *= np.exp(np.minimum(growth, log(6)))
    run.series["eval_loss"] *= np.exp(np.minimum(growth, log(6)))
    run.series["grad_norm"] *= np.exp(np.minimum(1.5 * growth, 3))


def _overfitting(run: FullRun, elapsed: Series, _spread: float) -> None:
    rise = FAULT_PARAMETERS["overfitting"][run.severity][0] * elapsed / (len(run) / 3)
    onset = run.onset or 0
    held_out = run.series["eval_loss"]
    noise = held_out[onset:] / np.minimum.accumulate(run.truth)[onset:]
    held_out[onset:] = np.minimum.accumulate(run.truth)[onset] * noise * (1 + rise[onset:])


def _oscillation(run: FullRun, elapsed: Series, spread: float) -> None:
    period = np.random.default_rng([run.seed, 14]).uniform(6, 20)
    factor, least = {"mild": (1.5, 0.06), "moderate": (2.5, 0.12), "severe": (4, 0.25)}[
        run.severity
    ]
    amplitude = max(factor * spread * 2**0.5, least) * np.minimum(1, elapsed / 30)
    run.series["loss"] *= np.exp(amplitude * np.sin(2 * np.pi * elapsed / period))


def _grad(run: FullRun, elapsed: Series, _spread: float) -> None:
    factor, over = FAULT_PARAMETERS[run.fault][run.severity]
    progress = np.clip(elapsed / over, 0, 1)
    vanished = np.where(elapsed > 0, 0.0, 1.0)
    run.series["grad_norm"] *= np.exp(progress * log(factor)) if factor else vanished


def _not_a_number(run: FullRun, elapsed: Series, _spread: float) -> None:
    """Mild: every third norm is NaN; moderate: the loss is logged as 0; severe: both are NaN."""
    is_faulty = np.arange(len(run)) >= (run.onset or 0)
    norms = is_faulty & (elapsed % 3 == 0) if run.severity == "mild" else is_faulty
    run.series["grad_norm"] = np.where(norms, np.nan, run.series["grad_norm"])
    if run.severity != "mild":
        loss = 0.0 if run.severity == "moderate" else np.nan
        run.series["loss"] = np.where(is_faulty, loss, run.series["loss"])


def _throughput_drop(run: FullRun, elapsed: Series, _spread: float) -> None:
    factor = {"mild": 1.15, "moderate": 1.6, "severe": 3.0}[run.severity]
    run.series["step_time"] *= np.where(elapsed > 0, factor, 1.0)


FAULT_EFFECTS: dict[str, Callable[[FullRun, Series, float], None]] = {
    "kl_blowup": _kl_blowup,
    "reward_collapse": _reward_collapse,
    "entropy_collapse": _entropy_collapse,
    "length_explosion": _length_explosion,
    "repetition": _repetition,
    "reward_zero_variance": _zero_variance,
    "policy_collapse": _policy_collapse,
    "loss_spike": _loss_spike,
    "loss_divergence": _loss_divergence,
    "overfitting": _overfitting,
    "oscillation": _oscillation,
    "grad_explosion": _grad,
    "grad_vanishing": _grad,
    "nan_or_inf": _not_a_number,
    "throughput_drop": _throughput_drop,
}
