"""Steps that a GradScaler skips are reported if they are more than the search for its scale."""

import pytest
import torch

from sentinel.client.checks.scaler_steps import ScalerSteps


def problems(skipped, **options):
    """The problems and their evidence, after steps of which those are skipped."""
    reports = []
    steps = ScalerSteps(reports.append, 3)
    scaler = torch.amp.GradScaler("cpu", **options)
    for each in skipped:
        steps.add(scaler, is_skipped=each)
    assert {report["rank"] for report in reports} <= {3.0}
    return [(report["problem"], report.get("skipped", report.get("share"))) for report in reports]


@pytest.mark.parametrize("exponent", [0, 16, 24])
def test_every_step_is_skipped_below_a_scale_of_one(exponent):
    first_scale = 2.0**exponent
    count = max(exponent, 1) + 4

    assert problems([True] * (count - 1), init_scale=first_scale) == []
    assert problems([True] * 99, init_scale=first_scale) == [("all_skipped", count)]


def test_a_share_of_the_steps_is_skipped():
    assert problems([True, False] * 50) == [("often_skipped", 0.5)]
    assert problems([True, False] * 50 + [False] * 100)[1:] == [("", None)]


def test_the_search_for_the_scale_is_no_problem():
    assert problems([True] * 17 + [False] * 83) == [("", None)]
    # A scale that grows every second step overflows as often.
    assert problems([True, False, False] * 34, growth_interval=2) == [("", None)]
