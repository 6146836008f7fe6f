"""A loss that rises has the cause that its whole case shows, or only possible ones."""

from dataclasses import replace

import pytest
from support.cause_trials import FINE_TUNING, clipped, harder_data, other_task, unstable
from support.diagnoses import RUN, diagnose_run
from support.signal_faults import SIZES, make_records, make_rows

SEEDS = range(3)


def diagnosed(make, size, seed, metadata=None):
    records = make_records(make_rows(make, size, seed))
    return diagnose_run([replace(each, run=RUN) for each in records], metadata)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("make", "metadata"), [(harder_data, None), (other_task, None), (clipped, FINE_TUNING)]
)
def test_the_rate_is_not_blamed_for_other_data_or_at_a_usual_rate(make, metadata, size):
    causes = [cause for seed in SEEDS for cause in diagnosed(make, size, seed, metadata).causes]

    assert "learning_rate_too_high" not in causes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_far_above_the_usual_is_the_cause_of_the_same_rise(seed):
    metadata = {**FINE_TUNING, "learning_rate": 3e-3}

    assert diagnosed(unstable, SIZES[-1], seed, metadata).causes == ["learning_rate_too_high"]


@pytest.mark.parametrize("make", [harder_data, other_task, clipped, unstable])
def test_the_healthy_twins_have_no_case(make):
    assert not any(diagnosed(make, 0, seed).causes for seed in SEEDS)
