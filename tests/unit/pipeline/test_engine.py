"""Detectors receive the records they need, and one that raises does not stop the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from sentinel.detectors.run_died import RunDied
from sentinel.detectors.run_failed import RunFailed
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import MAX_DETECTOR_ERRORS, Engine
from sentinel.pipeline.onset_request import MIN_POINTS


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


def test_a_detector_does_not_process_records_of_events_that_it_does_not_declare():
    class OfEvaluations(Broken):
        events: ClassVar[frozenset[Event]] = frozenset({Event.EVAL})

    engine = Engine({"above": OfEvaluations})
    engine.process(record(2.0))
    assert engine.error_counts == {}

    engine.process(record(2.0, event=Event.EVAL))
    assert engine.error_counts == {"above": 1}


def test_a_detector_does_not_process_steps_without_a_signal_that_it_declares():
    class OfRewards(Broken):
        steps_with: ClassVar[frozenset[str]] = frozenset({"reward", "y"})

    engine = Engine({"above": OfRewards})
    engine.process(record(2.0))
    assert engine.error_counts == {}

    engine.process(record(2.0, event=Event.EVAL))
    engine.process(replace(record(2.0), values={"x": 2.0, "y": 1.0}))
    assert engine.error_counts == {"above": 2}


def test_a_setting_or_a_state_with_the_name_of_a_declaration_declares_nothing():
    @dataclass
    class Counting(Broken):
        events: int = 3
        steps_with: list[str] = field(default_factory=list)

    engine = Engine({"above": Counting})
    engine.process(record(2.0))
    assert engine.error_counts == {"above": 1}


def test_each_run_has_detectors_of_its_own():
    engine = Engine({"above": Above})

    assert engine.detector("a", "above") is engine.detector("a", "above")
    assert engine.detector("a", "above") is not engine.detector("b", "above")


@pytest.mark.fault("A6")
@pytest.mark.swallows_errors
def test_a_detector_that_raises_is_switched_off_and_the_others_continue(caplog):
    engine = Engine({"broken": Broken, "above": Above})
    with caplog.at_level(logging.CRITICAL):
        results = [engine.process(record(2.0)) for _ in range(10)]

    assert engine.error_counts == {"broken": MAX_DETECTOR_ERRORS}
    assert all("above" in result.findings for result in results)


def test_an_incident_whose_onset_cannot_be_estimated_opens_with_the_date_of_its_detector(caplog):
    def estimate_onset(points, suspected_step):
        raise ValueError

    engine = Engine({"above": Above}, estimate_onset=estimate_onset)
    with caplog.at_level(logging.CRITICAL, "sentinel"):
        results = [
            engine.process(replace(record(float(step > MIN_POINTS) * 2.0), step=step))
            for step in range(1, MIN_POINTS + 2)
        ]

    (notification,) = results[-1].notifications
    assert notification.incident.onset_step == MIN_POINTS + 1
    assert results[-1].case_notifications
    assert not engine.incident_book.undated


def test_a_failure_that_another_rank_proves_to_have_caused_is_corrected():
    """Never two open cases that contradict each other."""
    engine = Engine({"run_died": RunDied, "run_failed": RunFailed})
    values = {"ranks_running": 0.0, "ranks_gone": 0.0, "ranks_failed": 1.0}
    lost = {"cause": "exception", "failed_ranks": "0", "exception": "RuntimeError"}
    died = {"cause": "died", "died_ranks": "1", "culprit_ranks": "1", "following_ranks": "0"}
    first, second = (
        engine.process(
            Record("run", WHOLE_RUN, 9, at, Event.HEARTBEAT, values | {"ranks_gone": gone}, end)
        )
        for at, gone, end in ((0.0, 0.0, lost), (4.0, 1.0, died | {"failed_ranks": "0"}))
    )

    def sent(result):
        return {
            (each.incident.key.detector, each.reason.value) for each in result.case_notifications
        }

    assert sent(first) == {("run_failed", "opened")}
    assert sent(second) == {("run_died", "opened"), ("run_failed", "resolved")}
