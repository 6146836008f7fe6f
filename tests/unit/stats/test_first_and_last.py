"""Tests of `FirstAndLast`."""

from sentinel.stats.first_and_last import FirstAndLast


def series(values, size=2):
    compared = FirstAndLast(size)
    for value in values:
        compared.add(value)
    return compared


def test_one_high_value_is_no_rise():
    assert not series([0.1, 0.1, 0.1, 0.9]).has_risen(0.0)
    assert series([0.1, 0.1, 0.9, 0.9]).has_risen(0.5)


def test_nothing_has_risen_while_first_and_last_overlap():
    assert not series([0.1, 0.5, 0.9]).has_risen(0.0)
    assert series([0.1, 0.5, 0.9]).lowest == 0.1
