"""What is not monitored is named, with the setting that maps it."""

from __future__ import annotations

import pytest

from sentinel.signals.coverage import (
    MAX_KEYS,
    SETTLED_RECORDS,
    Coverage,
    UnmonitoredKey,
    coverage_text,
)

READABLE = frozenset({"loss", "eval_loss", "reward", "grad_norm", "kl_ref", "learning_rate"})


def coverage_of(*keys):
    coverage = Coverage(READABLE)
    coverage.update(dict.fromkeys(keys, 1.0))
    return coverage


def test_a_monitored_run_needs_no_word():
    coverage = coverage_of(
        "loss", "grad_norm", "loss_scale", "my_metric", "reward_max", "rewards/x"
    )

    assert (coverage.is_blind, coverage.unmonitored) == (False, [])
    assert coverage.monitored == ["loss", "grad_norm"]
    assert coverage_text(False, []) == ""


def test_a_key_like_a_signal_that_is_missing_is_named():
    assert coverage_of("loss", "kl_to_prior").unmonitored == [
        UnmonitoredKey("kl_to_prior", "kl_ref")
    ]


@pytest.mark.parametrize("known", ["learning_rate", "epoch", "step_time"])
def test_a_run_without_an_outcome_is_blind(known):
    coverage = coverage_of(known, "ploss_0", "speed")

    assert coverage.is_blind
    assert coverage.unmonitored == [UnmonitoredKey("ploss_0", "loss")]


def test_a_blind_run_without_a_similar_key_names_all_keys():
    coverage = coverage_of("step", "vl", "tl")

    text = coverage_text(coverage.is_blind, coverage.unmonitored)
    assert text.startswith("nothing of this run is monitored except for NaN and infinity")
    assert '"vl", "tl"' in text
    assert '[keys] "vl" = "<signal>"' in text


def test_signals_that_no_detector_reads_do_not_make_a_run_monitored():
    coverage = coverage_of("policy_loss", "value_loss")

    assert coverage.is_blind
    assert [each.key for each in coverage.unmonitored] == ["policy_loss", "value_loss"]


def test_adversarial_losses_get_no_wrong_advice():
    assert {each.signal for each in coverage_of("Generator_loss", "loss_D").unmonitored} == {""}


def test_it_is_settled_after_some_records_and_bounded():
    coverage = Coverage(READABLE)
    for number in range(SETTLED_RECORDS):
        assert not coverage.is_settled
        coverage.update({f"key {number} {i}": 0.0 for i in range(64)})

    assert coverage.is_settled
    assert len(coverage.names) <= MAX_KEYS + 64
