"""Engine: each detector sees what it needs, and a broken one costs only itself."""

from __future__ import annotations

import logging
from typing import ClassVar

import pytest

from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import MAX_DETECTOR_ERRORS, Engine


class Above:
    """Finds every value above one."""

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


def test_a_finding_becomes_a_page():
    verdict = Engine({"above": Above}).process(record(2.0))

    assert verdict.findings["above"].summary == "x is high."
    assert [page.incident.key.detector for page in verdict.notifications] == ["above"]


def test_records_of_single_ranks_pass_unjudged():
    assert Engine({"above": Above}).process(record(2.0, rank=3)).notifications == ()


def test_a_detector_is_not_asked_about_what_is_not_there():
    engine = Engine({"above": Broken})
    engine.process(record(None))

    assert engine.error_counts == {}


def test_runs_do_not_share_a_detector():
    engine = Engine({"above": Above})

    assert engine.detector("a", "above") is engine.detector("a", "above")
    assert engine.detector("a", "above") is not engine.detector("b", "above")


@pytest.mark.swallows_errors
def test_a_broken_detector_is_switched_off_and_the_others_go_on(caplog):
    engine = Engine({"broken": Broken, "above": Above})
    with caplog.at_level(logging.CRITICAL):
        verdicts = [engine.process(record(2.0)) for _ in range(10)]

    assert engine.error_counts == {"broken": MAX_DETECTOR_ERRORS}
    assert all("above" in verdict.findings for verdict in verdicts)
