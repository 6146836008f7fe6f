"""Detectors receive the records they need, and one that raises does not stop the others."""

from __future__ import annotations

import logging
from typing import ClassVar

import pytest

from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import MAX_DETECTOR_ERRORS, Engine


class Above:
    """Finds every value above 1."""

    needs: ClassVar[frozenset[str]] = frozenset({"x"})
    signal: ClassVar[str] = "x"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Lower x."

    def update(self, record):
        return Finding("x is high.") if record.values["x"] > 1.0 else Clear()


class Broken(Above):
    def update(self, record):
        raise ZeroDivisionError


def record(x=None, rank=WHOLE_RUN, event=Event.STEP):
    return Record("run", rank, 1, 0.0, event, {} if x is None else {"x": x})


def test_a_finding_becomes_a_notification():
    result = Engine({"above": Above}).process(record(2.0))

    assert result.findings["above"].summary == "x is high."
    assert [each.incident.key.detector for each in result.notifications] == ["above"]


def test_records_of_single_ranks_are_not_evaluated():
    assert Engine({"above": Above}).process(record(2.0, rank=3)).notifications == ()


def test_a_detector_does_not_process_records_without_its_values():
    engine = Engine({"above": Broken})
    engine.process(record(None))

    assert engine.error_counts == {}


def test_each_run_has_detectors_of_its_own():
    engine = Engine({"above": Above})

    assert engine.detector("a", "above") is engine.detector("a", "above")
    assert engine.detector("a", "above") is not engine.detector("b", "above")


@pytest.mark.swallows_errors
def test_a_detector_that_raises_is_switched_off_and_the_others_continue(caplog):
    engine = Engine({"broken": Broken, "above": Above})
    with caplog.at_level(logging.CRITICAL):
        results = [engine.process(record(2.0)) for _ in range(10)]

    assert engine.error_counts == {"broken": MAX_DETECTOR_ERRORS}
    assert all("above" in result.findings for result in results)
