"""Tests of the GPU checks of the doctor."""

from __future__ import annotations

from threading import Event

import pytest
from support.fake_nvml import Card, FakeNvml, NVMLError

from sentinel.doctor import gpus as gpus_file
from sentinel.doctor.check_result import Grade
from sentinel.doctor.gpus import check_gpus
from sentinel.live.node.nvml import NvmlNotInstalledError, NvmlReader


def by_subject(results):
    return {result.subject: result for result in results}


def test_a_machine_without_gpus_is_ok(tmp_path):
    (found,) = check_gpus(NvmlReader(driver_paths=[tmp_path / "absent"]).read_gpus)

    assert (found.grade, found.message) == (Grade.OK, "none on this machine")


def test_healthy_gpus_are_counted():
    (found,) = check_gpus(NvmlReader(FakeNvml([Card(), Card()])).read_gpus)

    assert (found.grade, found.message) == (Grade.OK, "2 measured (H100)")


def test_a_fault_is_reported_for_its_gpu():
    cards = [Card(), Card(lost=True), Card(ecc=3), Card(reasons=0x40)]
    found = by_subject(check_gpus(NvmlReader(FakeNvml(cards)).read_gpus))

    assert {s: r.grade for s, r in found.items() if r.grade is not Grade.OK} == {
        "gpu 1": Grade.FAIL,
        "gpu 2": Grade.FAIL,
        "gpu 3": Grade.WARN,
    }


@pytest.mark.parametrize(
    "error", [NVMLError("Driver Not Loaded"), NvmlNotInstalledError("no: pip it")]
)
def test_a_driver_that_fails_is_a_failure(error):
    def refuse():
        raise error

    (found,) = check_gpus(refuse)
    assert found.grade is Grade.FAIL


def test_a_driver_that_hangs_times_out(monkeypatch):
    monkeypatch.setattr(gpus_file, "DRIVER_TIMEOUT_SECONDS", 0.05)
    held = Event()

    (found,) = check_gpus(held.wait)
    assert "not answered" in found.message
    held.set()
