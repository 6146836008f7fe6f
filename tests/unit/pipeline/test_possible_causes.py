"""A case without a confident cause has the two that fit, and a contradicted cause is withdrawn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import ClassVar

import pytest
from support.case_books import CaseBookDriver, Storm, opened, resolved

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.diagnose import assess
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.store import notification_codec
from sentinel.store.cases import case_to_dict


class OpenWindow:
    """Fits a wind, and is confirmed by a sign; a low pressure excludes it."""

    title: ClassVar[str] = "open window"
    explains: ClassVar[frozenset[str]] = frozenset({"wind"})
    severity: ClassVar[Severity | None] = None
    sign: ClassVar[str] = "the air is still outside"
    excluded_by: ClassVar[frozenset[str]] = frozenset({"rain"})

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        yield from symptom_evidence(context.symptoms.get("wind"), 0.4)
        if context.values.get("hours", 0.0) > 8.0:
            yield Evidence(0.5, "It has lasted for hours.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        if context.values.get("pressure", 1000.0) < 900.0:
            yield "The pressure is low."

    def remedy(self, context: CaseContext) -> str:
        return "Close it."


class Draught(OpenWindow):
    """Is only suggested, also where it explains no incident of the case."""

    title: ClassVar[str] = "draught"
    explains: ClassVar[frozenset[str]] = frozenset({"dark"})
    suggested_by: ClassVar[dict[str, float]] = {"wind": 0.3}
    sign: ClassVar[str] = ""

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        return ()


@pytest.fixture
def driver():
    causes = {"storm": Storm(), "open_window": OpenWindow(), "draught": Draught()}
    return CaseBookDriver(CaseBook(causes))


def possible(notification):
    return {each.cause: each.confidence for each in notification.possible_causes}


def test_below_the_confidence_of_a_cause_a_case_has_the_two_that_fit_best(driver):
    driver.update(opened("wind"))
    notification = driver.current_notification()

    assert notification.diagnosis is None
    assert possible(notification) == {"storm": 0.5, "open_window": 0.4}
    facts = build_message(notification, None).facts
    assert "Possible causes: storm (50 %) or open window (40 %)." in facts
    assert "Open window is confirmed if the air is still outside." in facts
    assert notification_codec.decode(notification_codec.encode(notification)) == notification
    (storm, window) = json.loads(json.dumps(case_to_dict(notification)))["possible_causes"]
    assert storm == {"cause": "storm", "title": "storm", "confidence": 0.5, "sign": ""}
    assert window["sign"] == "the air is still outside"


def test_a_cause_that_explains_no_incident_is_possible_by_suggestion_only(driver):
    driver.book.causes = {"draught": Draught()}
    driver.update(opened("wind"))

    assert possible(driver.current_notification()) == {"draught": 0.3}


@pytest.mark.parametrize(
    ("severity", "is_excluded"), [(Severity.INFO, False), (Severity.WARNING, True)]
)
def test_an_incident_above_info_excludes_a_cause(severity, is_excluded):
    symptoms = {
        name: Symptom(name, each, 90, 100, "It blows.")
        for name, each in (("wind", Severity.WARNING), ("rain", severity))
    }
    found = assess(CaseContext(symptoms), {"open_window": OpenWindow()})

    assert found.contradicted == ({"open_window": "It blows."} if is_excluded else {})
    assert [each.cause for each in found.possible_causes] == (
        [] if is_excluded else ["open_window"]
    )


def test_a_case_with_a_cause_has_no_possible_ones(driver):
    driver.update(opened("wind"), opened("rain"))

    assert driver.current_notification().diagnosis.cause == "storm"
    assert driver.current_notification().possible_causes == ()


def test_a_cause_that_is_contradicted_later_is_withdrawn(driver):
    driver.update(opened("wind"), values={"hours": 9.0})
    assert driver.current_notification().diagnosis.cause == "open_window"

    assert driver.update(values={"pressure": 880.0}, steps=4) == []
    assert driver.update(steps=1) == [(NotificationReason.UPDATED, "wind")]
    assert driver.current_notification().diagnosis is None
    assert possible(driver.current_notification()) == {"storm": 0.5}


def test_a_cause_that_is_contradicted_at_the_end_is_not_that_of_the_case(driver):
    driver.update(opened("wind"), values={"hours": 9.0})
    record_count = driver.step
    driver.update(values={"pressure": 880.0})
    causes = []

    class Book(CaseBook):
        def update(self, *arguments):
            found = super().update(*arguments)
            causes.extend(each.diagnosis for each in found)
            return found

    driver.book = Book(driver.book.causes, driver.book.runs)
    assert driver.update(resolved("wind", record_count + 2)) == [
        (NotificationReason.RESOLVED, "wind")
    ]
    assert causes == [None]


def test_a_named_cause_gets_the_evidence_that_is_found_later(driver):
    driver.book.causes = {"storm": Storm()}
    driver.update(opened("wind"), opened("rain"))
    assert len(driver.current_notification().diagnosis.evidence) == 2

    driver.update(metadata={"season": "autumn"}, event=Event.METADATA)
    assert driver.update(steps=4) == []
    assert driver.update() == [(NotificationReason.UPDATED, "wind")]
    assert len(driver.current_notification().diagnosis.evidence) == 3


def test_the_range_of_all_values_is_known_after_a_restart(driver):
    """The history has the newest values only."""
    driver.update(opened("wind"), values={"grad_norm": 2.0})
    driver.update(values={"grad_norm": 0.0}, steps=300)
    driver.book.runs = deserialize(serialize(driver.book.runs))
    driver.update(values={"grad_norm": 0.5})

    (run,) = driver.book.runs.values()
    (case,) = run.open_cases
    found = run.context_for(case).ranges["grad_norm"]
    assert (found.count, found.zeros, found.lowest, found.highest) == (302, 300, 0.0, 2.0)


def test_the_update_states_which_observation_contradicts_the_cause(driver):
    driver.update(opened("wind"), values={"hours": 9.0})
    driver.update(values={"pressure": 880.0}, steps=5)
    message = build_message(driver.current_notification(), None)

    assert message.notes == ("The cause is not open window. The pressure is low.",)
    driver.update(opened("rain"))
    assert driver.current_notification().diagnosis.cause == "storm"
    assert driver.current_notification().notes == ()


def test_the_update_states_that_the_evidence_is_no_longer_sufficient(driver):
    class OpenRoof(OpenWindow):
        title = "open roof"
        explains = frozenset({"wind", "rain"})
        excluded_by = frozenset()

    driver.book.causes = {"open_roof": OpenRoof()}
    driver.update(opened("wind"), values={"hours": 9.0})
    assert driver.current_notification().diagnosis.cause == "open_roof"

    driver.update(opened("rain"), values={"hours": 1.0})

    assert driver.current_notification().diagnosis is None
    message = build_message(driver.current_notification(), None)
    assert message.notes == ("The evidence for open roof is not sufficient.",)
