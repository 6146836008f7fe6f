"""Territory: new is what lies above every older median of eight."""

from sentinel.stats.new_extreme import NewExtreme


def after(values):
    ground = NewExtreme()
    for value in values:
        ground.add(value)
    return ground


def test_everything_is_new_in_the_beginning():
    assert after([1.0] * 20).is_new


def test_an_old_height_is_not_new():
    assert not after([5.0] * 8 + [1.0] * 40 + [5.0] * 8).is_new


def test_a_height_never_held_is_new_even_while_it_lasts_a_while():
    assert after([5.0] * 8 + [1.0] * 40 + [6.0] * 20).is_new


def test_single_values_are_no_ground():
    assert after([1.0] * 7 + [9.0] + [1.0] * 40 + [5.0] * 8).is_new
