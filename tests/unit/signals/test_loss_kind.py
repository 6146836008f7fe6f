"""Tests of the kinds of losses."""

from dataclasses import replace

import pytest

from sentinel.model.record import Event
from sentinel.signals.loss_kind import is_adversarial, is_pair_loss, is_policy_gradient
from sentinel.testing import event


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"reward": 1.0}, True), ({"clip_fraction": 0.1}, True), ({"entropy": 1.0}, False)],
)
def test_a_policy_gradient_is_recognised_by_its_signals(values, expected):
    assert is_policy_gradient(event(Event.STEP, 1, loss=0.1, **values)) is expected


def test_a_loss_over_pairs_is_recognised_by_signals_or_algorithm():
    def declares(algorithm):
        return replace(event(Event.START, 0), attributes={"algorithm": algorithm})

    assert is_pair_loss(event(Event.STEP, 1, loss=0.7, reward_margin=0.1))
    assert is_pair_loss(declares("dpo"))
    assert not is_pair_loss(declares("kto"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("Generator_loss", "Discriminator_loss"), True),
        (("loss/g", "loss/d"), True),
        (("train/gen_loss", "train/disc_loss"), True),
        (("loss", "generation_loss", "depth_loss"), False),
        (("g_loss", "d_model"), False),
    ],
)
def test_adversarial_training_is_recognised_by_two_losses(keys, expected):
    assert is_adversarial(keys) is expected
