"""Healthy runs alert nobody, and the sick run that is most like each of them is found.

The records of a trial are those of the whole run, combined over its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import exp, nan
from random import Random

import pytest
from support.aligned_steps import combine_step

from sentinel.config.settings import load_settings
from sentinel.detectors.straggler import Straggler
from sentinel.model.finding import Finding, Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Record
from sentinel.pipeline.pipeline import build
from sentinel.testing import update_detector

NOW = 1_700_000_000.0
Steps = Iterable[Mapping[str, list[float]]]


def timed(steps: Steps) -> Iterator[Record]:
    """Records of steps of several ranks, at the times at which they end."""
    time = NOW
    for number, values in enumerate(steps, start=1):
        time += max(values["step_time"])
        yield replace(combine_step(number, **values), time=time)


def alerts(steps: Steps) -> list[tuple[str, float, int | None]]:
    """Detector, time since the start and rank of each case that opened."""
    pipeline = build(load_settings({"baselines": False}, environ={}))
    return [
        (each.incident.key.detector, each.time - NOW, each.incident.finding.rank)
        for result in pipeline.process_block(timed(steps))
        for each in result.case_notifications
        if each.reason is NotificationReason.OPENED
    ]


def ranks(
    signal: str, delay: Callable[[float, int], float], usual: float = 0.05, seconds: float = 150.0
) -> Steps:
    """Two ranks; `delay(time, rank)` is what a rank takes longer for, in usual step times."""
    rng, time = Random(0), 0.0
    while time < seconds:
        own = [0.3 * usual * exp(0.1 * rng.gauss(0, 1)) for _ in range(2)]
        late = [usual * delay(time, rank) for rank in range(2)]
        rows = {"data_wait": [0.01 * usual] * 2, "compute_time": own}
        rows[signal] = [time + more for time, more in zip(rows[signal], late, strict=True)]
        whole = 0.6 * usual + max(map(sum, zip(*rows.values(), strict=True)))
        time += whole
        yield {**rows, "step_time": [whole] * 2}


def in_turn(time: float, rank: int) -> float:
    """Another program delays one rank for 4 s, and then the other."""
    return 0.8 if int(time / 4) % 2 == rank else 0.0


def in_bursts(time: float, rank: int) -> float:
    """Another program delays rank 1 for 9 s of 40."""
    return 1.0 if rank == 1 and time % 40 < 9 else 0.0


def constantly(share: float) -> Callable[[float, int], float]:
    """Rank 1 takes longer, from 30 s on."""
    return lambda time, rank: share if rank == 1 and time > 30 else 0.0


def networks(
    losses: Iterable[float], norms: Iterable[float] | None = None, mark: float = 1
) -> Steps:
    """One of two networks that are trained against each other; the client marks their steps."""
    marked = {"alternating_optimizers": [mark]} if mark else {}
    for loss, norm in zip(losses, norms or count(1.0, 0.0), strict=False):
        yield {"loss": [loss], "grad_norm": [norm], "step_time": [0.05], **marked}


def near(levels: Iterable[float], noise: float = 0.02) -> Iterator[float]:
    rng = Random(1)
    return (level * exp(noise * rng.gauss(0, 1)) for level in levels)


def equilibrium(number: int = 900) -> Iterator[float]:
    """The loss of a discriminator, which is best before the generator learns."""
    return near(1.39 - 0.5 * exp(-(((step - 60) / 40) ** 2)) for step in range(number))


def learnt(number: int = 900) -> Iterator[float]:
    return near(0.4 + 2.0 * exp(-step / 150) for step in range(number))


def loader(slow: Callable[[int], bool]) -> Steps:
    """Steps of 50 ms; one whose batch is late takes 150 ms."""
    for step in range(1, 1_500):
        wait = 0.1 if slow(step) else 0.002
        yield {"loss": [2.0 / step**0.2], "data_wait": [wait], "step_time": [0.05 + wait]}


@dataclass(frozen=True)
class Trial:
    """A healthy run, a sick one, and what is found of it within so many seconds of its start."""

    healthy: Callable[[], Steps]
    sick: Callable[[], Steps]
    detector: str
    seconds: float
    rank: int | None = None


TRIALS = {
    "ranks that are delayed in turn": Trial(
        lambda: ranks("compute_time", in_turn),
        lambda: ranks("compute_time", constantly(0.5)),
        *("straggler", 30 + 18, 1),
    ),
    "a rank that is delayed in bursts": Trial(
        lambda: ranks("compute_time", in_bursts),
        lambda: ranks("compute_time", constantly(0.2)),
        *("straggler", 30 + 36, 1),
    ),
    "ranks of which each waits for data now and then": Trial(
        lambda: ranks("data_wait", in_turn),
        lambda: ranks("data_wait", constantly(0.3)),
        *("straggler", 30 + 36, 1),
    ),
    "slow steps in bursts": Trial(
        lambda: ranks("compute_time", in_bursts, 1.0, 600.0),
        lambda: ranks("compute_time", constantly(1.0), 1.0, 600.0),
        *("straggler", 30 + 60, 1),
    ),
    "two networks near their equilibrium": Trial(
        lambda: networks(equilibrium()),
        lambda: networks([*equilibrium(400), *[nan] * 20]),
        *("nan_or_inf", 21, 0),
    ),
    "a generator whose gradient grows": Trial(
        lambda: networks(equilibrium(), near(0.01 * min(40, 1.02**step) for step in range(900))),
        lambda: networks(equilibrium(), near(0.01 * 1.05**step for step in range(300))),
        *("grad_explosion", 10),
    ),
    "a discriminator that becomes unsure": Trial(
        lambda: networks(near(min(1.38, 0.4 + step / 200) for step in range(900))),
        lambda: networks(
            near(0.4 if step < 300 else 0.4 * 4.0 ** (step - 300) for step in range(320))
        ),
        *("loss_spike", 17),
    ),
    "a training that learns": Trial(
        lambda: networks(learnt(), mark=0),
        lambda: networks(equilibrium(), mark=0),
        *("loss_plateau", 60),
    ),
    "slow batches at the start of an epoch": Trial(
        lambda: loader(lambda step: step % 100 < 6),
        lambda: loader(lambda step: step > 600),
        *("data_stall", 600 * 0.052 + 20 * 0.15),
    ),
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_healthy_run_alerts_nobody(name):
    assert alerts(TRIALS[name].healthy()) == []


@pytest.mark.parametrize("name", TRIALS)
def test_its_sick_twin_is_found(name):
    trial = TRIALS[name]
    detector, seconds, rank = alerts(trial.sick())[0]

    assert (detector, rank) == (trial.detector, trial.rank)
    assert seconds <= trial.seconds


def test_a_loader_that_is_late_again_and_again_is_one_message():
    """Every 7 s for 3 s, as at the start of short epochs."""
    (found,) = alerts(loader(lambda step: step > 200 and step % 100 > 60))

    assert found[0] == "data_stall"


def contended(seed: int) -> Steps:
    """Healthy ranks of a busy machine: heavy tails, and other programs that delay one of them."""
    rng = Random(seed)
    size, usual = rng.choice([2, 2, 4, 8]), 10 ** rng.uniform(-2.0, 0.3)
    sigma, delay, length = rng.choice([0.02, 0.3]), rng.uniform(0.1, 1.5), rng.uniform(0.5, 5.0)
    begin = end = late = 0.0
    time = 0.0
    for _ in range(600):
        if time > begin:
            late, end = rng.randrange(size), time + min(12.0, rng.expovariate(1 / length))
            begin = end + rng.expovariate(1 / 10)
        own = [0.3 * usual * exp(sigma * rng.gauss(0, 1)) for _ in range(size)]
        own = [each + (rng.random() < 0.03) * 0.2 * usual * rng.paretovariate(1.5) for each in own]
        if time < end:
            own[int(late)] *= 1 + delay
        whole = max(own) + 0.7 * usual
        time += whole
        yield {"compute_time": own, "step_time": [whole] * size}


def test_no_rank_of_a_busy_machine_is_a_warning():
    for seed in range(40):
        detector = Straggler()
        outputs = [update_detector(detector, record) for record in timed(contended(seed))]
        findings = [output for output in outputs if isinstance(output, Finding)]
        assert not [each for each in findings if each.severity is Severity.WARNING]
