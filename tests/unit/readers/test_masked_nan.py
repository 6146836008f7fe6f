"""NaN values that a framework replaced by numbers are restored."""

from __future__ import annotations

from math import isnan, nan, sqrt

import pytest

from sentinel.readers.rows import NanRestorer


def undone(rows):
    laundry = NanRestorer()
    return [laundry.restore(row) for row in rows]


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("loss", [0.0, nan])
def test_a_norm_of_whole_groups_with_a_masked_loss_becomes_nan(loss, groups):
    rows = undone(
        [{"loss": 2.0, "grad_norm": 0.7}] + [{"loss": loss, "grad_norm": sqrt(groups)}] * 4
    )

    assert rows[0] == {"loss": 2.0, "grad_norm": 0.7}
    assert [isnan(row["grad_norm"]) for row in rows[1:]] == [False, False, True, True]
    assert isnan(rows[-1]["loss"])


@pytest.mark.parametrize(
    "row",
    [
        {"loss": 2.0, "grad_norm": 1.0},
        {"loss": 0.0, "grad_norm": 0.0},
        {"loss": 0.0, "grad_norm": 0.93},
        {"loss": 0.0, "grad_norm": nan},
        {"loss": 0.0, "grad_norm": 1e200},
        {"loss": 0.0, "grad_norm": 1.0, "reward": 0.5},
        {"grad_norm": 1.0},
        {"loss": 0.0},
    ],
)
def test_plausible_values_are_unchanged(row):
    assert [str(restored) for restored in undone([row] * 9)] == [str(row)] * 9
