"""Steps that a GradScaler skips are reported if they are more than the search for its scale."""

import pytest
import torch

from sentinel.client.checks.scaler_steps import ScalerSteps


def problems(skipped, optimizers=1, **options):
    """The problems and their evidence, after steps of which those are skipped.

    Each optimizer takes the step.
    """
    stepped = [torch.optim.SGD([torch.zeros(1)]) for _ in range(optimizers)]
    reports = []
    steps = ScalerSteps(reports.append, 3)
    scaler = torch.amp.GradScaler("cpu", **options)
    for each in skipped:
        for optimizer in stepped:
            steps.add(scaler, optimizer, is_skipped=each)
    assert {report["rank"] for report in reports} <= {3.0}
    return [(report["problem"], report.get("skipped", report.get("share"))) for report in reports]


@pytest.mark.parametrize("optimizers", [1, 3])
@pytest.mark.parametrize("exponent", [0, 16, 24])
def test_every_step_is_skipped_below_a_scale_of_one(exponent, optimizers):
    first_scale = 2.0**exponent
    count = max(exponent, 1) + 4

    assert problems([True] * (count - 1), optimizers, init_scale=first_scale) == []
    assert problems([True] * 99, optimizers, init_scale=first_scale) == [("all_skipped", count)]


def test_a_share_of_the_steps_is_skipped():
    assert problems([True, False] * 50) == [("often_skipped", 0.5)]
    assert problems([True, False] * 50 + [False] * 100)[1:] == [("", None)]


@pytest.mark.parametrize("optimizers", [1, 3])
def test_the_search_for_the_scale_is_no_problem(optimizers):
    assert problems([True] * 17 + [False] * 83, optimizers) == [("", None)]
    # A scale that grows every second step overflows as often.
    assert problems([True, False, False] * 34, growth_interval=2) == [("", None)]


def test_each_scaler_is_judged_by_itself():
    """As of a GAN whose generator and discriminator each have one."""
    reports, scalers = [], [torch.amp.GradScaler("cpu", init_scale=16.0) for _ in range(2)]
    steps, optimizer = ScalerSteps(reports.append, 0), torch.optim.SGD([torch.zeros(1)])
    for _ in range(100):
        for number, scaler in enumerate(scalers):
            steps.add(scaler, optimizer, is_skipped=bool(number))

    assert [report["problem"] for report in reports] == ["all_skipped"]
    assert steps.in_a_row == 100

    reports.clear()
    for at in range(200):
        steps.add(scalers[at % 2], optimizer, is_skipped=at % 40 < 2)
    assert [report["problem"] for report in reports] == [""]
