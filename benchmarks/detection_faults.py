"""What each fault does to a run, in three severities."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
from detection_run import Whole
from support.faulty_series import FAULT_PARAMETERS
from support.policy_runs import ENTROPY_DECAY_POINTS, MAX_LENGTH_FACTOR, DOUBLING_POINTS
from support.synthetic_runs import Series

LAG = {"mild": 80, "moderate": 40, "severe": 12}
"""Points from the first step of a policy collapse, in the KL, to the cliff of the reward."""


def _kl_blowup(run: Whole, since: Series, _gain: float) -> None:
    apart, most = {"mild": (60, 30), "moderate": (20, 100), "severe": (5, 1000)}[run.severity]
    run.series["kl_ref"] *= np.exp(np.minimum(since * log(2) / apart, log(most)))


def _reward_collapse(run: Whole, since: Series, gain: float) -> None:
    lost, over = {"mild": (0.5, 40), "moderate": (0.8, 15), "severe": (1.2, 3)}[run.severity]
    run.series["reward"] -= gain * lost * np.minimum(1, since / over)


def _entropy_collapse(run: Whole, since: Series, gain: float) -> None:
    """Certain of what it says, it says it every time, and finds nothing better any more."""
    fall = since / ENTROPY_DECAY_POINTS[run.severity]
    run.series["entropy"] *= np.maximum(np.exp(-fall), 0.01)
    left = np.maximum(np.exp(-fall), 0.02)
    run.series["frac_zero_std"] = 1 - (1 - run.series["frac_zero_std"]) * left
    run.series["reward_std"] *= left
    run.series["reward"] -= gain * 0.3 * (1 - left)


def _length_explosion(run: Whole, since: Series, _gain: float) -> None:
    grown = np.minimum(2.0 ** (since / DOUBLING_POINTS[run.severity]), MAX_LENGTH_FACTOR[run.severity])
    run.series["completion_length"] *= grown


def _repetition(run: Whole, since: Series, _gain: float) -> None:
    most, over = {"mild": (0.4, 100), "moderate": (0.65, 30), "severe": (0.9, 5)}[run.severity]
    usual = run.series["sample_repetition"]
    run.series["sample_repetition"] = usual + (1 - usual) * most * np.minimum(1, since / over)


def _zero_variance(run: Whole, since: Series, _gain: float) -> None:
    alike, over = {"mild": (0.9, 60), "moderate": (0.97, 20), "severe": (1.0, 3)}[run.severity]
    share = alike * np.minimum(1, since / over)
    run.series["frac_zero_std"] = 1 - (1 - run.series["frac_zero_std"]) * (1 - share)
    run.series["reward_std"] *= np.maximum(1 - share, 0)
    run.series["grad_norm"] *= np.maximum(1 - share, 1e-6)


def _policy_collapse(run: Whole, since: Series, gain: float) -> None:
    """The KL runs away, some way behind it the reward falls, then texts go long and loop."""
    lag = LAG[run.severity]
    _kl_blowup(run, since, gain)
    behind, last = np.maximum(since - lag, 0), np.maximum(since - int(1.5 * lag), 0)
    run.series["reward"] -= gain * 1.1 * np.minimum(1, behind / max(3, lag // 4))
    run.series["entropy"] *= np.maximum(np.exp(-behind / lag), 0.1)
    run.series["completion_length"] *= np.minimum(1 + last / 10, 4)
    usual = run.series["sample_repetition"]
    run.series["sample_repetition"] = usual + (1 - usual) * 0.7 * np.minimum(1, last / 20)
    run.cliff = (run.onset or 0) + lag


def _loss_spike(run: Whole, since: Series, _spread: float) -> None:
    size, decay = FAULT_PARAMETERS["loss_spike"][run.severity]
    struck = np.arange(len(run)) >= (run.onset or 0)
    left = np.where(struck, np.exp(-since * run.every / decay), 0)
    run.series["loss"] *= 1 + (size - 1) * left
    run.series["grad_norm"] *= 1 + (3 * size - 1) * left


def _loss_divergence(run: Whole, since: Series, _spread: float) -> None:
    grown = since * run.every * log(2) / FAULT_PARAMETERS["loss_divergence"][run.severity][0]
    run.series["loss"] *= np.exp(np.minimum(grown, log(6)))
    run.series["eval_loss"] *= np.exp(np.minimum(grown, log(6)))
    run.series["grad_norm"] *= np.exp(np.minimum(1.5 * grown, 3))


def _overfitting(run: Whole, since: Series, _spread: float) -> None:
    rise = FAULT_PARAMETERS["overfitting"][run.severity][0] * since / (len(run) / 3)
    at = run.onset or 0
    held_out = run.series["eval_loss"]
    noise = held_out[at:] / np.minimum.accumulate(run.truth)[at:]
    held_out[at:] = np.minimum.accumulate(run.truth)[at] * noise * (1 + rise[at:])


def _oscillation(run: Whole, since: Series, spread: float) -> None:
    beat = np.random.default_rng([run.seed, 14]).uniform(6, 20)
    wide, least = {"mild": (1.5, 0.06), "moderate": (2.5, 0.12), "severe": (4, 0.25)}[run.severity]
    swing = max(wide * spread * 2**0.5, least) * np.minimum(1, since / 30)
    run.series["loss"] *= np.exp(swing * np.sin(2 * np.pi * since / beat))


def _grad(run: Whole, since: Series, _spread: float) -> None:
    factor, over = FAULT_PARAMETERS[run.fault][run.severity]
    way = np.clip(since / over, 0, 1)
    gone = np.where(since > 0, 0.0, 1.0)
    run.series["grad_norm"] *= np.exp(way * log(factor)) if factor else gone


def _not_a_number(run: Whole, since: Series, _spread: float) -> None:
    """Mild: every third norm; moderate: the loss is masked as 0, as trainers do; severe: all."""
    struck = np.arange(len(run)) >= (run.onset or 0)
    norms = struck & (since % 3 == 0) if run.severity == "mild" else struck
    run.series["grad_norm"] = np.where(norms, np.nan, run.series["grad_norm"])
    if run.severity != "mild":
        loss = 0.0 if run.severity == "moderate" else np.nan
        run.series["loss"] = np.where(struck, loss, run.series["loss"])


def _throughput_drop(run: Whole, since: Series, _spread: float) -> None:
    factor = {"mild": 1.15, "moderate": 1.6, "severe": 3.0}[run.severity]
    run.series["step_time"] *= np.where(since > 0, factor, 1.0)


SPOILT: dict[str, Callable[[Whole, Series, float], None]] = {
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
