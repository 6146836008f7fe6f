"""Properties of numbers as text, and of evidence in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.evidence_text import evidence_text
from sentinel.model.quantity_text import distinct_texts, format_number

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(NUMBERS, NUMBERS, st.booleans())
def test_two_different_numbers_never_have_the_same_text(one, other, percent):
    first, second = distinct_texts(one, other, percent=percent)
    factor = 100.0 if percent else 1.0

    assert (first == second) == (one * factor == other * factor)


@given(NUMBERS)
def test_a_number_is_shown_to_four_digits(number):
    shown = float(format_number(number).replace(",", ""))

    assert shown == pytest.approx(number, rel=6e-4, abs=1e-300)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("idle_seconds", 30.0299, "Idle: 30.03 s"),
        ("seconds_until_full", 2400.0, "Until full: 40 min"),
        ("free_bytes", 3.5 * 2**30, "Free: 3.5 GiB"),
        ("growth_bytes_per_second", 2.0**20, "Growth: 1 MiB/s"),
        ("warmup_steps", 100.0, "Warm-up: 100 steps"),
        ("grad_norm_median_of_3", 3.74238, "Gradient norm (median of the last 3): 3.742"),
        ("truncated_share_at_start", 0.031, "Truncated share at start: 3.1%"),
        ("signal", "kl_ref", "Signal: KL to the reference"),
        ("error", "exit code 3", "Error: exit code 3"),
    ],
)
def test_evidence_has_a_label_in_words_and_a_unit(key, value, text):
    assert evidence_text(key, value) == text
