"""Runs with a loss that public logs taught: signed, adversarial, converged, of few lines.

Each function fills the series of a run; those with a fault set its onset.
"""

from __future__ import annotations

from math import log

import numpy as np
from detection_factories import gradient_norms
from detection_run import FullRun
from support.synthetic_runs import Series, learning_rate_schedule, log_uniform, student_noise

Rng = np.random.Generator


def add_loss(rng: Rng, run: FullRun, truth: Series, noise: float, rate: Series) -> None:
    """Add a loss with relative noise, evaluations of it, a gradient norm and a learning rate."""
    count = len(truth)
    run.truth = truth
    run.series = {
        "loss": truth * np.exp(noise * student_noise(rng, count)),
        "grad_norm": gradient_norms(rng, count, 20),
        "learning_rate": rate,
        "eval_loss": truth * rng.uniform(1, 1.2) * np.exp(0.004 * rng.standard_normal(count)),
    }
    run.eval_every = max(1, count // int(rng.integers(10, 30)))


def power_law(rng: Rng, count: int) -> Series:
    """A loss without noise, falling."""
    first = log_uniform(rng, 1, 10)
    last = first * rng.uniform(0.1, 0.6)
    progress = np.arange(count) / count * log_uniform(rng, 30, 1000)
    return np.asarray(last + (first - last) * (1 + progress) ** -rng.uniform(0.5, 1.0))


def signed_loss(rng: Rng, run: FullRun) -> None:
    """A contrastive or margin loss that is learned from above 0 to below."""
    count = int(log_uniform(rng, 60, 1000))
    first, last = rng.uniform(0.0, 1.0), rng.uniform(-3.0, -0.5)
    progress = 1 - np.exp(-np.arange(count) / count * rng.uniform(2, 8))
    noise = rng.uniform(0.02, 0.3) * student_noise(rng, count)
    run.series = {
        "loss": first + (last - first) * progress + noise,
        "grad_norm": gradient_norms(rng, count, 20),
        "learning_rate": learning_rate_schedule(rng, count) * 1e-4,
    }


def adversarial_losses(rng: Rng, run: FullRun) -> None:
    """Generator and discriminator at equilibrium: neither loss falls, both fluctuate."""
    count = int(log_uniform(rng, 100, 2000))
    for name, level in (("loss_d", 1.38), ("loss_g", rng.uniform(0.69, 3.0))):
        early = rng.uniform(-0.5, 1.5) * np.exp(-np.arange(count) / rng.uniform(3, 30))
        drift = 0.1 * np.cumsum(rng.standard_normal(count)) / count**0.5
        noise = rng.uniform(0.05, 0.3) * student_noise(rng, count)
        run.series[name] = level * np.exp(early + drift + noise)
    if rng.random() < 0.5:
        run.series["loss"] = run.series["loss_d"] + run.series["loss_g"]
    run.series["learning_rate"] = np.full(count, 2e-4)


def small_reward_head(rng: Rng, run: FullRun) -> None:
    """A reward model whose head begins near 0: the gradient grows tenfold as the loss falls."""
    count = int(rng.integers(80, 500))
    middle = rng.uniform(10, 40)
    learned = 1 / (1 + np.exp(-(np.arange(count) - middle) / rng.uniform(3, 10)))
    last = log_uniform(rng, 0.02, 0.5)
    add_loss(
        rng,
        run,
        log(2) * (last / log(2)) ** learned,
        rng.uniform(0.05, 0.2),
        1e-5 * np.linspace(1, 0.02, count),
    )
    growth = rng.uniform(5, 20) ** np.minimum(1, learned * 1.2)
    fall = (run.truth / log(2)) ** 0.5
    noise = np.exp(rng.uniform(0.2, 0.5) * student_noise(rng, count))
    run.series["grad_norm"] = log_uniform(rng, 0.1, 2) * growth * fall * noise


def converged(rng: Rng, run: FullRun) -> None:
    """A loss that has reached its floor, with a constant or a spent learning rate."""
    count = int(log_uniform(rng, 150, 2000))
    first, floor = rng.uniform(1, 5), rng.uniform(0.02, 1)
    truth = floor + (first - floor) * np.exp(-np.arange(count) / count * rng.uniform(8, 30))
    rate = learning_rate_schedule(rng, count) if rng.random() < 0.5 else np.ones(count)
    add_loss(rng, run, truth, rng.uniform(0.01, 0.2), rate * 1e-4)


def decaying_rate(rng: Rng, run: FullRun) -> None:
    """A loss that falls ever slower, as the learning rate decays by a cosine or in stages."""
    count = int(log_uniform(rng, 150, 2000))
    time = np.linspace(0, 1, count)
    cosine = 0.5 + 0.5 * np.cos(np.pi * time)
    rate = cosine if rng.random() < 0.5 else 0.1 ** np.floor(time * 3)
    progress = np.cumsum(rate) / rate.sum()
    first = rng.uniform(1.5, 8)
    truth = first * (1 + progress * log_uniform(rng, 10, 300)) ** -rng.uniform(0.1, 0.4)
    truth = truth * (1 - 0.05 * progress)
    add_loss(rng, run, truth, rng.uniform(0.01, 0.08), 1e-4 * rate)


def lines_of_means(rng: Rng, run: FullRun) -> None:
    """A log of 40 to 60 lines, each the mean of several steps."""
    count = int(rng.integers(40, 61))
    rate = learning_rate_schedule(rng, count)
    add_loss(rng, run, power_law(rng, count), log_uniform(rng, 0.005, 0.1), rate * 1e-5)
    run.every = int(rng.choice([5, 10, 50, 100]))
    run.eval_every = int(rng.choice([1, 5]))


def memorising(rng: Rng, run: FullRun) -> None:
    """A loss that comes near 0, where gradient norms scatter by factors of ten."""
    count = int(rng.integers(300, 1500))
    progress = np.arange(count) / count
    truth = rng.uniform(1, 3) * np.exp(-progress * rng.uniform(4, 7))
    add_loss(rng, run, truth, rng.uniform(0.1, 0.4), 1e-5 * np.linspace(1, 0.02, count))
    spread = 0.3 + rng.uniform(0.8, 1.3) * np.minimum(1, 2 * progress)
    run.series["grad_norm"] = truth**0.5 * np.exp(spread * rng.standard_normal(count))
    run.series["eval_loss"] = np.full(count, 2.0) * np.exp(-0.5 * progress)


def missing_by_design(rng: Rng, run: FullRun) -> None:
    """A metric that is NaN from the first record on, since its batch holds none of its kind."""
    lines_of_means(rng, run)
    run.series["custom/recall_of_rare_class"] = np.full(len(run), np.nan)
    run.series["custom/image_score"] = rng.normal(0, 1, len(run))


def rounded_rate(rng: Rng, run: FullRun) -> None:
    """A learning rate that the log rounds to 0 in every record, while the loss falls."""
    lines_of_means(rng, run)
    run.series["learning_rate"] = np.zeros(len(run))


def flat_in_few_lines(rng: Rng, run: FullRun) -> None:
    """A flat loss in 45 to 70 lines, with a flat held-out loss."""
    count = int(rng.integers(45, 71))
    level = log_uniform(rng, 0.5, 8)
    add_loss(rng, run, np.full(count, level), log_uniform(rng, 0.002, 0.02), np.full(count, 1e-5))
    run.onset, run.every = 0, int(rng.choice([10, 50]))


def flat_signed(rng: Rng, run: FullRun) -> None:
    """A signed loss that stays where it began."""
    count = int(rng.integers(120, 400))
    run.onset = 0
    run.series = {
        "loss": rng.uniform(-0.1, 0.1) + log_uniform(rng, 0.1, 1) * student_noise(rng, count),
        "grad_norm": gradient_norms(rng, count, 20),
        "learning_rate": np.full(count, 1e-4),
    }


def pair_chance(rng: Rng, run: FullRun) -> None:
    """A loss of pairs that stays at chance level, ln 2."""
    count = int(rng.integers(160, 500))
    run.onset = 0
    add_loss(rng, run, np.full(count, log(2)), rng.uniform(0.02, 0.12), np.full(count, 1e-6))
    run.series |= {
        "preference_accuracy": rng.binomial(16, 0.5, count) / 16,
        "reward_margin": 0.02 * rng.standard_normal(count),
    }


def far_too_fast(rng: Rng, run: FullRun) -> None:
    """A learning rate 100 to 1,000 times the usual: a plateau far above the best, wild norms."""
    count = int(rng.integers(100, 400))
    run.onset = 0
    first = rng.uniform(1, 4)
    best = first * rng.uniform(0.5, 0.9)
    truth = np.full(count, first * rng.uniform(1.5, 4))
    reached = int(rng.integers(2, 8))
    truth[:reached] = np.linspace(first, best, reached)
    add_loss(rng, run, truth, rng.uniform(0.05, 0.3), np.full(count, log_uniform(rng, 0.01, 0.1)))
    run.series["grad_norm"] = np.exp(rng.uniform(1, 2) * rng.standard_normal(count)) * 5


def short_explosion(rng: Rng, run: FullRun) -> None:
    """A loss that explodes within 8 records, in a fragment of 6 to 15 lines."""
    count = int(rng.integers(6, 16))
    run.onset = int(rng.integers(1, 3))
    elapsed = np.maximum(np.arange(count) - run.onset, 0)
    growth = np.minimum(elapsed * rng.uniform(2, 8), 60)
    loss = rng.uniform(1, 9) * np.exp(0.05 * rng.standard_normal(count) + growth)
    run.series = {"loss": loss, "learning_rate": np.full(count, 1e-3)}


def nan_from_the_start(rng: Rng, run: FullRun) -> None:
    """A loss of an unknown key that is NaN from record 0 on."""
    lines_of_means(rng, run)
    run.onset = 0
    del run.series["loss"]
    run.series["loss_reconstruction"] = np.full(len(run), np.nan)


def nan_in_unknown_key(rng: Rng, run: FullRun) -> None:
    """An unknown key that had been finite becomes NaN, and stays so."""
    lines_of_means(rng, run)
    run.onset = int(len(run) * rng.uniform(0.35, 0.7))
    run.series["custom/feature_norm"] = rng.uniform(1, 2, len(run))
    run.series["custom/feature_norm"][run.onset :] = np.nan
