"""Tests of the detector gpu_fault."""

from dataclasses import replace

import pytest

from sentinel.detectors.gpu_fault import GpuFault
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, update_detector


def update(detector, **values):
    return update_detector(detector, event(Event.HEARTBEAT, 7, **values))


def test_a_healthy_gpu_is_clear():
    assert update(GpuFault(), gpu_xid=0.0, gpu_ecc_errors=0.0) == Clear()


def test_without_a_gpu_there_is_no_output():
    assert update(GpuFault(), host_cpu=0.5) is None


@pytest.mark.parametrize(
    ("xid", "severity"),
    [(79, Severity.CRITICAL), (48, Severity.CRITICAL), (63, Severity.WARNING),
     (13, Severity.INFO), (43, Severity.INFO), (18, Severity.WARNING)],
)  # fmt: skip
def test_the_severity_of_an_xid_follows_its_meaning(xid, severity):
    finding = update(GpuFault(), gpu_xid=float(xid))

    assert finding.severity is severity
    assert f"XID {xid}" in finding.summary


def test_only_memory_errors_since_the_start_are_reported():
    detector = GpuFault()

    assert update(detector, gpu_ecc_errors=3.0) == Clear()
    finding = update(detector, gpu_ecc_errors=5.0)
    assert finding.severity is Severity.WARNING
    assert finding.summary == ("The GPU driver reports 2 new uncorrectable memory errors.")


def test_a_reset_gpu_has_a_new_baseline():
    detector = GpuFault()
    update(detector, gpu_ecc_errors=3.0)

    assert update(detector, gpu_ecc_errors=0.0) == Clear()
    assert update(detector, gpu_ecc_errors=1.0).severity is Severity.WARNING
    both = update(detector, gpu_ecc_errors=1.0, gpu_xid=94.0)
    assert both.severity is Severity.CRITICAL


def test_the_node_with_the_error_is_named():
    record = event(Event.HEARTBEAT, 7, gpu_xid=79.0)
    finding = update_detector(GpuFault(), replace(record, attributes={"gpu_xid_host": "node-3"}))

    assert finding.summary.startswith("The GPU driver on node-3 reports XID 79")
    assert finding.evidence["host"] == "node-3"
