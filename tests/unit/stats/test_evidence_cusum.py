"""Evidence accumulates for shifts of any size, and no single value can raise an alarm."""

from itertools import pairwise

from sentinel.stats.evidence_cusum import MAX_SUM_NATS, EvidenceCusum


def evidence_of(values):
    cusum = EvidenceCusum()
    return [cusum.update(z, step) for step, z in enumerate(values)], cusum


def test_values_at_the_expected_level_are_no_evidence():
    assert evidence_of([0.2, -0.2] * 100)[0] == [0.0] * 200


def test_one_value_adds_little_however_large():
    assert evidence_of([1e12])[0][0] < 2.0


def test_a_shift_of_any_size_accumulates_to_the_maximum():
    for size, within in ((0.6, 150), (1.0, 50), (3.0, 12)):
        evidence, cusum = evidence_of([0.0] * 20 + [size] * within)

        assert evidence[-1] > 9.0, size
        assert cusum.onset_range[0] <= 20 <= cusum.onset_range[1] + 1
        assert all(a <= b for a, b in pairwise(evidence))


def test_it_ends_soon_after_the_series_is_back():
    evidence, _ = evidence_of([2.0] * 100 + [-0.5] * 60)

    assert evidence[99] <= MAX_SUM_NATS
    assert evidence[-1] == 0.0


def test_holding_the_value_to_reach_brings_the_evidence_to_the_bound():
    _, cusum = evidence_of([0.5] * 9)
    z = cusum.z_to_reach(9.0, 8)
    for step in range(8):
        cusum.update(z, step)

    assert 9.0 <= cusum.evidence < 10.5
