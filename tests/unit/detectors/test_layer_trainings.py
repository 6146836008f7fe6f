"""Detectors of layers on real trainings, healthy and broken on purpose."""

from __future__ import annotations

import pytest
from support.layer_trainings import BROKEN, HEALTHY, make

from sentinel.config.plugins import load_classes
from sentinel.model.finding import Finding, Severity
from sentinel.testing import first_finding, update_detector

DETECTORS = {
    name: kind for name, kind in load_classes("detectors").items() if name.startswith("layer_")
}
QUICK = ("relu, momentum", "clipped", "adapters", "mixture of experts", "policy")
QUICK += ("adapters, second matrices at 16 times the rate", "new head at 10 times the rate")


def find(kind, seed=0):
    """The first record with a finding of each detector."""
    records = list(make(kind, seed).records())
    found = {name: first_finding(detector(), records)[0] for name, detector in DETECTORS.items()}
    return {name: record.step for name, record in found.items() if record is not None}


@pytest.mark.parametrize("kind", QUICK)
def test_healthy_trainings_have_no_finding(kind):
    assert find(kind) == {}


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted(HEALTHY.keys() - set(QUICK)))
def test_further_healthy_trainings_have_no_finding(kind):
    assert find(kind) == {}


@pytest.mark.parametrize("kind", ["20 layers of gain 6", "gradient scaled twice from step 200"])
def test_gradients_that_explode_are_found(kind):
    expected = 220 if "200" in kind else 70

    assert find(kind) == {BROKEN[kind][0]: expected}


def test_a_block_whose_group_has_100_times_the_rate_is_named():
    records = list(make("block with 100 times the rate", 0).records())
    detector = DETECTORS["layer_update_ratio"]()
    outputs = [(record.step, update_detector(detector, record)) for record in records]
    found = [(step, output) for step, output in outputs if isinstance(output, Finding)]

    assert (found[0][0], found[0][1].severity) == (1, Severity.INFO)
    assert found[0][1].evidence["layer"].startswith("blocks.2")
    assert (found[-1][0], found[-1][1].severity) == (100, None)
