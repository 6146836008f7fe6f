"""Checkup of GPUs: what is wrong with the driver, or with one GPU, comes with its remedy."""

from __future__ import annotations

from threading import Event

import pytest
from support.fake_nvml import Card, FakeNvml, NVMLError

from sentinel.doctor import gpus as gpus_file
from sentinel.doctor.check_result import Grade
from sentinel.doctor.gpus import gpus
from sentinel.live.node.nvml import NoLibraryError, Nvml


def by_subject(remarks):
    return {remark.subject: remark for remark in remarks}


def test_a_machine_without_gpus_has_nothing_to_mend(tmp_path):
    (found,) = gpus(Nvml(drivers=[tmp_path / "absent"]).look)

    assert (found.grade, found.says) == (Grade.WELL, "none on this machine")


def test_gpus_that_are_well_are_counted():
    (found,) = gpus(Nvml(FakeNvml([Card(), Card()])).look)

    assert (found.grade, found.says) == (Grade.WELL, "2 measured (H100)")


def test_what_is_wrong_with_a_gpu_is_told_of_that_one():
    cards = [Card(), Card(lost=True), Card(ecc=3), Card(reasons=0x40)]
    found = by_subject(gpus(Nvml(FakeNvml(cards)).look))

    assert {s: r.grade for s, r in found.items() if r.grade is not Grade.WELL} == {
        "gpu 1": Grade.MEND,
        "gpu 2": Grade.MEND,
        "gpu 3": Grade.NOTE,
    }


@pytest.mark.parametrize("error", [NVMLError("Driver Not Loaded"), NoLibraryError("no: pip it")])
def test_a_driver_that_cannot_be_asked_is_to_be_mended(error):
    def refuse():
        raise error

    (found,) = gpus(refuse)
    assert found.grade is Grade.MEND


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(gpus_file, "PATIENCE", 0.05)
    held = Event()

    (found,) = gpus(held.wait)
    assert "not answered" in found.says
    held.set()
