"""Curves in a line of text."""

from __future__ import annotations

import math

import pytest

from sentinel.cli._sparkline import ASCII_BLOCKS, BLOCKS, MAX_POINTS, Curve, sparkline


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([0.0, 7.0], 5, "▁█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([None, 0.0, 1.0], 3, " ▁█"),
        ([math.nan, math.inf], 2, "!!"),
        ([-1e308, 0.0, 1e308], 3, "▁▅█"),
        ([5.0, 5.0, 5.0], 3, "▁▁▁"),
    ],
)
def test_the_curve_fits_the_width(values, width, expected):
    assert sparkline(values, width) == expected


def test_a_single_nan_stays_visible_in_a_long_curve():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, math.nan if step == 50_000 else step / 1000)
    drawn = sparkline(curve.values, 40)

    assert len(curve.values) <= MAX_POINTS
    assert (len(drawn), drawn.count("!")) == (40, 1)
    assert (drawn[0], drawn[-1]) == ("▁", "█")
    assert curve.steps[0] == 0
    assert curve.steps == sorted(curve.steps)


def test_a_terminal_without_unicode_has_a_curve():
    assert sparkline(range(8), 8, ascii_only=True) == ASCII_BLOCKS
    assert len(BLOCKS) == len(ASCII_BLOCKS)
