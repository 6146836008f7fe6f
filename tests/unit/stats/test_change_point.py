"""The interval of a change covers the true one, and there is none without a change."""

from __future__ import annotations

from random import Random

from sentinel.stats.change_point import change_interval

SEEDS = range(1_000_000, 1_000_200)


def noise(rng: Random, count: int, level: float = 0.0) -> list[float]:
    return [rng.gauss(level, 1.0) for _ in range(count)]


def test_the_interval_of_a_step_covers_its_onset():
    covered = clear = 0
    for seed in SEEDS:
        rng = Random(seed)
        onset = rng.randint(12, 60)
        values = noise(rng, onset) + noise(rng, rng.randint(5, 20), rng.uniform(2, 5))
        interval = change_interval(values)
        if interval is not None:
            clear += 1
            covered += interval[0] <= onset <= interval[1]

    assert clear >= 0.85 * len(SEEDS)
    assert covered >= 0.93 * clear


def test_noise_and_trends_have_no_change():
    for drift in (0.0, 0.1):
        found = [
            change_interval(
                [drift * at + value for at, value in enumerate(noise(Random(seed), 64))]
            )
            for seed in SEEDS
        ]
        assert sum(each is not None for each in found) <= 0.03 * len(SEEDS)


def test_a_change_that_was_undone_is_not_dated():
    """A dip that recovered, and the fall that lasts."""
    values = [1.0, 0.9, 1.0, 0.95] * 3 + [0.1, 0.0, 0.1] + [0.95, 1.0, 0.9, 1.0] * 4

    earliest, latest = change_interval([*values, 0.1, 0.0, 0.0, 0.1, 0.0, 0.1])

    assert len(values) <= earliest <= latest <= len(values) + 1


def test_few_or_equal_values_have_no_change():
    assert change_interval([0.0, 1.0]) is None
    assert change_interval([1.0] * 20) is None
