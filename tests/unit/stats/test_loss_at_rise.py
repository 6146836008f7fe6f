"""A rise of the norm is learning where the loss has fallen since the rise began."""

from math import log
from random import Random

from sentinel.stats.loss_at_rise import LossAtRise


def history_of(norms, losses):
    history = LossAtRise()
    for norm, loss in zip(norms, losses, strict=True):
        history.add(log(norm), loss)
    return history


def is_learning(norms, losses, since=8):
    history = history_of(norms, losses)
    return history.is_learning(history.losses(since), since)


def test_no_pair_has_no_rise():
    assert not LossAtRise().is_learning(LossAtRise().losses(since=3), since=3)


def test_a_rise_goes_back_to_where_it_began():
    norms = [1.1**t for t in range(40)]
    losses = [1.0 - t / 100 for t in range(40)]
    at_begin, before = history_of(norms, losses).losses(since=8)

    assert at_begin == losses[:8]
    assert before == losses[16:32]
    assert is_learning(norms, losses)


def test_a_jump_begins_with_the_jump():
    norms = [1.1 ** min(t, 16) for t in range(32)] + [100.0] * 8
    losses = [1.0 - min(t, 16) / 100 for t in range(40)]
    at_begin, before = history_of(norms, losses).losses(since=8)

    assert at_begin == before == losses[16:32]
    assert not is_learning(norms, losses)


def test_a_loss_that_has_risen_since_is_not_learning():
    norms = [1.1**t for t in range(40)]
    losses = [1.0 - t / 50 for t in range(32)] + [0.6] * 8

    assert not is_learning(norms, losses)


def test_a_fall_within_the_noise_is_not_learning():
    rng = Random(1)
    norms = [1.1**t for t in range(40)]

    assert not is_learning(norms, [1.0 + rng.gauss(0.0, 0.3) for _ in range(40)])


def test_one_outlier_of_the_loss_does_not_hide_the_fall():
    norms = [1.1**t for t in range(40)]
    losses = [1.0 - t / 50 + 0.01 * (t % 3) for t in range(40)]
    losses[36] = 9.0

    assert is_learning(norms, losses)


def test_a_low_loss_is_memorised():
    assert history_of([1.0] * 24, [1.0] * 8 + [0.1] * 16).is_memorised()
    assert not history_of([1.0] * 24, [1.0] * 8 + [0.5] * 16).is_memorised()
    assert not LossAtRise().is_memorised()
