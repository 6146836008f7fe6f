"""Synthetic training runs: healthy ones, and the same with a fault from a known step on.

Runs depend on the seed only. Healthy runs have what real logs have and must not raise alarms:
heavy-tailed and autocorrelated noise, outliers, schedules, restarts, changes of data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray

from sentinel.model.record import Record
from sentinel.testing import steps

Series = NDArray[np.float64]
SEVERITIES = ("mild", "moderate", "severe")


@dataclass
class Run:
    """Series by signal, and the step at which a fault begins, if there is one.

    `truth` is the loss without noise, for runs with a loss.
    """

    series: dict[str, Series] = field(default_factory=dict)
    onset: int | None = None
    every: int = 1
    truth: Series = field(default_factory=lambda: np.zeros(0))

    def records(self) -> Iterator[Record]:
        return steps(
            first=self.every,
            every=self.every,
            **{name: values.tolist() for name, values in self.series.items()},
        )

    def __len__(self) -> int:
        return len(next(iter(self.series.values())))


def rl_run(seed: int, fault: str = "", severity: str = "moderate", onset: int = 0) -> Run:
    """A rising reward and a drifting KL; `fault` is kl_blowup, reward_collapse or empty."""
    rng = np.random.default_rng(seed)
    length = int(log_uniform(rng, 250, 2000))
    onset = onset or int(length * rng.uniform(0.35, 0.7))
    rate = learning_rate_schedule(rng, length)
    progress = np.cumsum(rate) / rate.sum()
    kl, reward, gain = kl_series(rng, progress), *reward_series(rng, progress)
    since = np.maximum(np.arange(length) - onset, 0)
    if fault == "kl_blowup":
        doubling, limit = {"mild": (60, 30), "moderate": (20, 100), "severe": (5, 1000)}[severity]
        kl = kl * np.exp(np.minimum(since * log(2) / doubling, log(limit)))
    if fault == "reward_collapse":
        lost, duration = {"mild": (0.5, 40), "moderate": (0.8, 15), "severe": (1.2, 3)}[severity]
        reward = reward - gain * lost * np.minimum(1, since / duration)
    series = {"kl_ref": kl, "reward": reward, "learning_rate": rate * 1e-6}
    return Run(series, onset + 1 if fault else None)


def sft_run(seed: int, fault: str = "") -> Run:
    """A loss that falls as a power law; `fault` loss_plateau stops the learning early."""
    rng = np.random.default_rng(seed)
    length = int(log_uniform(rng, 600, 4000))
    onset = int(length * rng.uniform(0.12, 0.3))
    rate = learning_rate_schedule(rng, length)
    progress = np.cumsum(rate)
    first = rng.uniform(1.2, 11.0)
    last = first * rng.uniform(0.25, 0.8)
    learned = np.minimum(progress, progress[onset]) if fault == "loss_plateau" else progress
    loss = last + (first - last) * (1 + learned / log_uniform(rng, 3, 60)) ** -rng.uniform(0.3, 0.9)
    if not fault:
        loss = loss * loss_level_changes(rng, length)
    noise = student_noise(rng, length) * log_uniform(rng, 0.01, 0.14)
    blips = (rng.random(length) < 0.001) * rng.uniform(0.2, 0.8, length)
    every = int(rng.choice([1, 1, 1, 5, 10]))
    length_used = length // every * every
    truth = loss[:length_used].reshape(-1, every).mean(axis=1)
    loss = (loss * np.exp(noise + blips))[:length_used].reshape(-1, every).mean(axis=1)
    series = {"loss": loss, "learning_rate": rate[:length_used:every] * 1e-5}
    return Run(series, onset if fault else None, every, truth)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A log-uniform random number."""
    return float(np.exp(rng.uniform(log(low), log(high))))


def student_noise(rng: np.random.Generator, length: int) -> Series:
    """Student noise of unit variance; tails and lag-one autocorrelation as in real logs."""
    freedom, correlation = float(rng.choice([4, 5, 8, 30])), float(rng.choice([0, 0, 0.1, 0.3]))
    noise = rng.standard_t(freedom, length) / np.sqrt(freedom / (freedom - 2))
    for index in range(1, length):
        noise[index] = correlation * noise[index - 1] + np.sqrt(1 - correlation**2) * noise[index]
    return noise


def learning_rate_schedule(rng: np.random.Generator, length: int) -> Series:
    """Learning rate as a share of its peak: warm-up, then cosine, linear or constant."""
    warm = max(1, int(length * rng.choice([0.0, 0.03, 0.1])))
    time = np.arange(length)
    late = np.clip((time - warm) / max(1, length - warm), 0, 1)
    shape = rng.choice(["cosine", "linear", "constant"], p=[0.5, 0.35, 0.15])
    down = {"cosine": 0.5 + 0.5 * np.cos(np.pi * late), "linear": 1 - late, "constant": late**0}
    return np.asarray(np.minimum(1, (time + 1) / warm) * np.maximum(down[str(shape)], 0.02))


def kl_series(rng: np.random.Generator, progress: Series) -> Series:
    """A KL that drifts as a power of the progress, with outliers up to ten times too high.

    In public logs of healthy runs no single KL is over three times the third highest of the 64
    before it.
    """
    end, power = log_uniform(rng, 0.004, 0.3), rng.uniform(0.6, 2.0)
    mean = end * (np.maximum(progress, 1e-3) ** power + 1e-4)
    is_outlier = rng.random(len(progress)) < rng.choice([0, 0.003, 0.01])
    spikes = is_outlier * np.log(rng.uniform(2, 10, len(progress)))
    kl = mean * np.exp(student_noise(rng, len(progress)) * rng.uniform(0.15, 0.8) + spikes)
    if rng.random() < 0.5:  # the first-order estimator is signed
        kl = kl + (0.3 * mean + 0.03 * end) * rng.standard_t(4, len(progress))
    return np.asarray(kl)


def reward_series(rng: np.random.Generator, progress: Series) -> tuple[Series, float]:
    """A sigmoid of the progress with noise, and its gain, which a fault can remove."""
    gain, middle, width = rng.uniform(0.3, 2.5), rng.uniform(0.1, 0.5), rng.uniform(0.05, 0.2)
    learned = 1 / (1 + np.exp(-(progress - middle) / width))
    learned = (learned - learned[0]) / (learned[-1] - learned[0])
    noise = student_noise(rng, len(progress)) * gain * log_uniform(rng, 0.04, 0.4)
    return rng.uniform(-2, 1) + gain * learned + noise, gain


def loss_level_changes(rng: np.random.Generator, length: int) -> Series:
    """Factors of the loss: lower with each epoch; in a third of runs harder data or a restart."""
    level = np.ones(length)
    epochs = int(rng.choice([1, 2, 3]))
    for epoch in range(1, epochs):
        level[epoch * length // epochs :] *= 1 - rng.uniform(0.02, 0.12)
    at = int(length * rng.uniform(0.2, 0.9))
    fading = np.exp(-np.arange(length - at) / rng.uniform(15, 600))
    if rng.random() < 0.3:
        level[at:] *= 1 + rng.uniform(0.03, 0.25) * (fading if rng.random() < 0.5 else 1)
    return level
