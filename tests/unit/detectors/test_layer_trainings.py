"""Detectors of layers on real trainings, healthy and broken on purpose."""

from __future__ import annotations

import pytest
from support.layer_trainings import BROKEN, HEALTHY, make

from sentinel.config.plugins import load_classes
from sentinel.testing import first_finding

DETECTORS = {
    name: kind for name, kind in load_classes("detectors").items() if name.startswith("layer_")
}
QUICK = ("relu, momentum", "clipped", "adapters", "mixture of experts", "policy")


def find(kind, seed):
    """The first record with a finding of each detector."""
    records = list(make(kind, seed).records())
    found = {name: first_finding(detector(), records)[0] for name, detector in DETECTORS.items()}
    return {name: record.step for name, record in found.items() if record is not None}


@pytest.mark.parametrize("kind", QUICK)
def test_healthy_trainings_have_no_finding(kind):
    assert find(kind, 0) == {}


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted(HEALTHY.keys() - set(QUICK)))
def test_further_healthy_trainings_have_no_finding(kind):
    assert find(kind, 0) == {}


@pytest.mark.parametrize("kind", ["20 layers of gain 6", "gradient scaled twice from step 200"])
def test_gradients_that_explode_are_found(kind):
    expected = 220 if "200" in kind else 70

    assert find(kind, 0) == {BROKEN[kind][0]: expected}
