"""Faults of tools, rollouts, experts, value models, rewards, speed and preferences are found.

The logs have the key names of frameworks, and are read as a file of rows is.
"""

from __future__ import annotations

import pytest
from support.signal_faults import FAULTS, HEALTHY, ONSET, SIZES, make_records, make_rows

from sentinel.config.plugins import load_classes
from sentinel.model.finding import Finding, Severity, receives
from sentinel.testing import update_detector

DETECTORS = load_classes("detectors")
EARLY = 8
"""Steps before the onset at which a finding counts: its noise may begin a fault."""
NEEDED_SHARES = (0.7, 0.95, 1.0)
SEEDS, MANY_SEEDS = 3, 24


def log_records(make, size, seed):
    return make_records(make_rows(make, size, seed))


def found(records, detector):
    """Steps and severities of the findings of that detector."""
    judge = DETECTORS[detector]()
    outputs = [
        (record.step, update_detector(judge, record))
        for record in records
        if receives(judge, record.event, record.values.keys())
    ]
    return [
        (step, output.severity or judge.severity)
        for step, output in outputs
        if isinstance(output, Finding)
    ]


def share_found(make, detector, size, seeds):
    logs = [found(log_records(make, size, seed), detector) for seed in range(seeds)]
    return sum(bool(log) and log[0][0] >= ONSET - EARLY for log in logs) / seeds


@pytest.mark.parametrize(("make", "detector"), FAULTS)
def test_a_severe_fault_is_found_and_its_healthy_twin_is_not(make, detector):
    assert share_found(make, detector, SIZES[-1], SEEDS) == 1.0
    assert not any(found(log_records(make, 0, seed), detector) for seed in range(SEEDS))


@pytest.mark.full
@pytest.mark.parametrize(("make", "detector"), FAULTS)
def test_faults_of_all_sizes_are_found(make, detector):
    shares = [share_found(make, detector, size, MANY_SEEDS) for size in SIZES]

    assert all(share >= needed for share, needed in zip(shares, NEEDED_SHARES, strict=True)), shares
    assert not any(found(log_records(make, 0, seed), detector) for seed in range(MANY_SEEDS))


@pytest.mark.parametrize("make", HEALTHY)
def test_no_detector_warns_of_a_healthy_log(make):
    detectors = {detector for _, detector in FAULTS}
    logs = [log_records(make, 0, seed) for seed in range(SEEDS)]
    severities = {
        (detector, severity)
        for detector in detectors
        for records in logs
        for _, severity in found(records, detector)
    }

    assert {severity for _, severity in severities} <= {Severity.INFO}, severities
