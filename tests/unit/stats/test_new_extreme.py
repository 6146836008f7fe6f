"""A level is new if it is above every older median of eight values."""

from sentinel.stats.new_extreme import NewExtreme


def extreme_of(values, transient_share=0.0):
    extreme = NewExtreme(transient_share)
    for value in values:
        extreme.add(value)
    return extreme


def test_every_level_is_new_at_the_start():
    assert extreme_of([1.0] * 20).is_new


def test_an_old_level_is_not_new():
    assert not extreme_of([5.0] * 8 + [1.0] * 40 + [5.0] * 8).is_new


def test_a_level_never_held_is_new_even_if_it_lasts():
    assert extreme_of([5.0] * 8 + [1.0] * 40 + [6.0] * 20).is_new


def test_single_values_do_not_form_a_level():
    assert extreme_of([1.0] * 7 + [9.0] + [1.0] * 40 + [5.0] * 8).is_new


def test_the_level_of_the_transient_is_forgotten():
    values = [5.0] * 8 + [1.0] * 400 + [4.0] * 8

    assert not extreme_of(values).is_new
    assert extreme_of(values, transient_share=0.1).is_new
    assert not extreme_of([5.0] * 80 + values[8:], transient_share=0.1).is_new
