"""GAN imbalance: the discriminator has won, so that the generator has nothing to learn from.

Formula
    won      = the median of the last `points` losses of the discriminator is below `floor`, and
               that of the last 32 of the generator has not fallen by half from that of its first 16
    Finding  = won; info until that has lasted for `steps` steps
    none     = a loss of the discriminator was negative, as that of a critic (WGAN) is, whose level
               has no floor; or it was 0 until now, as before the step from which it is used

    Each of two discriminators, as of a cycle of two translations, is evaluated beside the
    generator that it judges.

Units
    `floor`: unit of the loss. `points`: logged losses of the discriminator. `steps`: steps.

Source
    Goodfellow et al. 2014 (arXiv:1406.2661), Arjovsky and Bottou 2017 (arXiv:1701.04862): as the
    discriminator approaches its optimum on samples that are far from the data, the gradient that
    it gives the generator vanishes, or becomes noise. A cross-entropy below 0.01 is a probability
    of over 0.99 for every answer, a least-squares loss below 0.01 an output within 0.1 of its
    target.

Defaults
    Generators are often lost for some hundred steps at their start and recover, hence `steps` 500
    and `points` 64. Of 30 trainings on the points of a ring, for 1,500 steps with every fifth
    logged, the 10 with equal rates have no finding, nor have the 10 whose discriminator learns 50
    times faster and is caught up with; of the 10 whose generator has stopped learning, 9 are a
    warning and one is info. A discriminator at chance is no finding: the losses of one that learns
    nothing and of a healthy GAN at its equilibrium are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.k_of_n import KOfN

FIRST_LOSSES, RECENT_LOSSES = 16, 32
"""Losses of the generator in its first level, and in the present one."""

LEARNED_SHARE = 0.5
"""Fall of the loss of the generator, as a share of its first level, that shows that it learns from
other terms of its loss."""


PAIRS = (
    ("discriminator_loss", "generator_loss"),
    ("second_discriminator_loss", "second_generator_loss"),
)


@dataclass
class _Pair:
    """What is known of a discriminator and its generator."""

    discriminator: KOfN
    generator: KOfN = field(default_factory=lambda: KOfN(RECENT_LOSSES))
    first: list[float] = field(default_factory=list)
    has_critic: bool = False
    low_since: int | None = None


@dataclass
class GanImbalance(DetectorDefaults):
    """Evaluates `discriminator_loss` beside `generator_loss`, which may be in other records."""

    floor: float = 0.01
    points: int = 64
    steps: int = 500

    events = frozenset({Event.STEP})
    steps_with = frozenset(name for pair in PAIRS for name in pair)
    reads = steps_with
    signal = "discriminator_loss"
    remedy = (
        "Check that the generator's optimizer steps and its weights change. Lower the "
        "discriminator's learning rate or update it less often, add noise to its inputs or "
        "one-sided label smoothing, or regularise it (spectral normalisation, gradient penalty)."
    )

    def __post_init__(self) -> None:
        self._pairs = [_Pair(KOfN(self.points, below=True)) for _ in PAIRS]

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record with some of the losses; the first discriminator that has won."""
        if record.event is not Event.STEP:
            return None
        outputs = [self._evaluate(record, *each) for each in zip(self._pairs, PAIRS, strict=True)]
        finding = next((each for each in outputs if isinstance(each, Finding)), None)
        return finding or next((each for each in outputs if each is not None), None)

    def _evaluate(self, record: Record, pair: _Pair, names: tuple[str, str]) -> DetectorOutput:
        loss, generator = (record.values.get(name, nan) for name in names)
        if isfinite(generator):
            pair.generator.add(generator, 0.0, record.step)
            pair.first = [*pair.first, generator][:FIRST_LOSSES]
        if not isfinite(loss) or (loss == 0.0 and not pair.discriminator.values):
            return None
        pair.has_critic |= loss < 0.0
        is_low = pair.discriminator.add(loss, self.floor, record.step)
        if pair.has_critic or is_low is None or not pair.generator.is_full:
            return None
        first, now = median(pair.first), pair.generator.median
        if not is_low:
            pair.low_since = None
            return CLEAR
        onset = pair.discriminator.onset or record.step
        pair.low_since = since = min(pair.low_since or onset, onset, record.step)
        if now < first - LEARNED_SHARE * abs(first):
            return CLEAR
        return Finding(
            summary=f"The discriminator has won: its loss is {pair.discriminator.median:.3g} "
            f"(median of the last {self.points}), and the generator's is {now:.4g}, after "
            f"{first:.4g} at the start.",
            evidence={
                "discriminator_loss_median": pair.discriminator.median,
                "generator_loss_median": now,
                "generator_loss_at_start": first,
            },
            severity=None if record.step - since >= self.steps else Severity.INFO,
            onset_step=since,
            signal=names[0],
        )
