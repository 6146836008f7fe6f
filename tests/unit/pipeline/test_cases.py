"""Incidents with a common cause are one case; others are cases of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.case_books import CaseBookDriver, Storm, opened, resolved

from sentinel.causes._evidence import symptom_evidence
from sentinel.config.settings import build_causes
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import MAX_JOIN_GAP_STEPS, RUN_END_DETECTORS, CaseBook
from sentinel.pipeline.snapshot import deserialize, serialize


@pytest.fixture
def driver():
    return CaseBookDriver(CaseBook({"storm": Storm()}))


def test_an_incident_that_the_cause_explains_sends_no_notification(driver):
    assert driver.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert driver.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]

    assert [each.key.detector for each in driver.current_notification().others] == ["rain", "dark"]


def test_an_incident_that_joins_an_undiagnosed_case_is_an_update(driver):
    driver.update(opened("wind"))

    assert driver.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]
    assert driver.update(opened("dark", episode=2)) == [(NotificationReason.UPDATED, "wind")]


def test_the_updates_of_a_case_have_different_names(driver):
    driver.update(opened("wind"))
    names = set()
    for episode in (1, 2, 3):
        driver.update(opened("dark", episode=episode))
        current = driver.current_notification()
        names.add(replace(current, reason=NotificationReason.UPDATED).name)

    assert names == {f"grpo-7b/wind#1:updated-{number}" for number in (1, 2, 3)}


def test_a_record_that_changes_no_incident_is_no_update(driver):
    driver.update(opened("wind"), opened("rain"))

    assert driver.update(values={"loss": 2.0}, steps=50) == []


def test_a_case_has_at_least_the_severity_of_its_cause(driver):
    driver.update(opened("wind"))

    assert driver.update(opened("rain", onset=80)) == [(NotificationReason.ESCALATED, "wind")]
    notification = driver.current_notification()
    assert notification.incident.severity is Severity.CRITICAL
    assert notification.diagnosis.cause == "storm"
    assert notification.diagnosis.confidence == pytest.approx(0.75)
    assert [each.step for each in notification.diagnosis.evidence] == [80, 90]


def test_another_episode_of_the_same_severity_is_not_notified(driver):
    driver.update(opened("wind", Severity.CRITICAL))

    assert driver.update(opened("wind", Severity.CRITICAL, episode=2)) == [
        (NotificationReason.UPDATED, "wind")
    ]
    assert driver.update(opened("wind", episode=3)) == [(NotificationReason.UPDATED, "wind")]


def test_a_cause_found_after_the_first_notification_is_an_update(driver):
    driver.update(opened("wind", Severity.CRITICAL))

    assert driver.update(opened("rain")) == [(NotificationReason.UPDATED, "wind")]
    assert driver.current_notification().diagnosis.cause == "storm"
    assert driver.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]


def test_a_notified_cause_is_not_notified_again(driver):
    driver.update(opened("wind"), opened("rain"))

    assert driver.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]


def test_incidents_of_one_step_are_one_notification_with_the_cause(driver):
    assert driver.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert driver.current_notification().diagnosis.cause == "storm"


def test_incidents_without_a_common_cause_are_separate_cases(driver):
    driver.update(opened("wind"))

    assert driver.update(opened("theft", Severity.CRITICAL)) == [
        (NotificationReason.OPENED, "theft")
    ]


def test_an_incident_long_after_the_last_is_a_new_case(driver):
    driver.update(opened("wind"))
    driver.update(steps=MAX_JOIN_GAP_STEPS)

    assert driver.update(opened("rain")) == [(NotificationReason.OPENED, "rain")]


@pytest.mark.parametrize(
    ("step_time", "reason"),
    [(0.001, NotificationReason.UPDATED), (0.1, NotificationReason.OPENED)],
)
def test_an_incident_soon_after_the_last_is_of_its_case_however_fast_the_steps(step_time, reason):
    book = CaseBook({"storm": Storm()})
    driver = CaseBookDriver(book, began_at=1.7e9, step_time=step_time)
    driver.update(opened("wind"))
    driver.update(steps=5 * MAX_JOIN_GAP_STEPS)

    ((found, _),) = driver.update(opened("dark"))
    assert found is reason


@pytest.mark.parametrize("detector", sorted(RUN_END_DETECTORS))
def test_the_end_of_a_run_is_a_case_of_its_own(detector):
    class Flood(Storm):
        explains = Storm.explains | RUN_END_DETECTORS

    driver = CaseBookDriver(CaseBook({"flood": Flood()}))
    driver.update(opened("wind", Severity.CRITICAL))

    assert driver.update(opened(detector, Severity.CRITICAL)) == [
        (NotificationReason.OPENED, detector)
    ]


def test_an_incident_of_severity_info_is_evidence(driver):
    assert driver.update(opened("wind", Severity.INFO)) == []
    assert driver.update(opened("rain")) == [(NotificationReason.OPENED, "rain")]

    assert driver.current_notification().diagnosis.cause == "storm"
    assert driver.current_notification().others == ()


def test_an_incident_of_severity_info_can_reveal_the_cause_of_a_case(driver):
    driver.update(opened("rain"))

    assert driver.update(opened("wind", Severity.INFO)) == [(NotificationReason.ESCALATED, "rain")]


def test_evidence_for_a_cause_that_explains_no_incident_of_the_case_is_ignored(driver):
    driver.update(opened("wind", Severity.INFO), opened("rain", Severity.INFO))

    assert driver.update(opened("theft")) == [(NotificationReason.OPENED, "theft")]
    assert driver.current_notification().diagnosis is None


def test_an_incident_that_ended_long_ago_is_no_evidence(driver):
    info = opened("wind", Severity.INFO, state=IncidentState.FIRING)
    driver.update(info)
    driver.update(replace(info.incident, state=IncidentState.RESOLVED))
    driver.update(steps=MAX_JOIN_GAP_STEPS)
    driver.update(opened("rain"))

    assert driver.current_notification().diagnosis is None


def test_a_firing_incident_is_evidence_however_old(driver):
    driver.update(opened("wind", Severity.INFO))
    driver.update(steps=2 * MAX_JOIN_GAP_STEPS)
    driver.update(opened("rain"))

    assert driver.current_notification().diagnosis.cause == "storm"


def test_a_cause_can_use_metadata_and_values(driver):
    driver.update(event=Event.METADATA, metadata={"season": "autumn"})
    driver.update(values={"hours": 3.0})
    driver.update(opened("wind"), opened("rain"))

    diagnosis = driver.current_notification().diagnosis
    assert diagnosis.remedy == "Stay in for 3 hours."
    assert diagnosis.evidence[-1] == Evidence(0.2, "It is autumn.")
    assert diagnosis.confidence == pytest.approx(0.8)


def test_the_last_good_checkpoint_is_that_before_the_first_onset(driver):
    driver.update(opened("wind", onset=90, last_good_step=80), opened("rain", onset=40))

    assert driver.current_notification().diagnosis.last_good_step is None
    driver.update(opened("rain", onset=40, last_good_step=30))
    assert driver.current_notification().diagnosis.last_good_step == 30


def test_a_case_resolves_with_the_last_of_its_incidents(driver):
    driver.update(opened("wind"))
    driver.update(opened("dark"))

    assert driver.update(resolved("wind", 300)) == []
    assert driver.update(resolved("dark", 400)) == [(NotificationReason.RESOLVED, "wind")]
    assert list(driver.book.current_notifications()) == []


def test_a_resolved_case_has_the_step_of_its_last_incident(driver):
    driver.update(opened("wind"), opened("rain"))
    record = Record("grpo-7b", WHOLE_RUN, 500, 500.0)
    (notification,) = driver.book.update(record, [resolved("rain", 450), resolved("wind", 400)])

    assert (notification.step, notification.incident.resolved_step) == (450, 450)
    assert (notification.incident.key.detector, notification.incident.state) == (
        "wind",
        IncidentState.RESOLVED,
    )
    assert notification.diagnosis.cause == "storm"


def test_what_opens_comes_before_what_ends_at_the_same_record(driver):
    driver.update(opened("wind"))

    assert driver.update(resolved("wind"), opened("run_failed", Severity.CRITICAL)) == [
        (NotificationReason.OPENED, "run_failed"),
        (NotificationReason.RESOLVED, "wind"),
    ]


def test_an_incident_that_opens_and_ends_at_one_record_has_both_notifications(driver):
    assert driver.update(opened("wind"), resolved("wind")) == [
        (NotificationReason.OPENED, "wind"),
        (NotificationReason.RESOLVED, "wind"),
    ]


def test_an_incident_after_the_resolution_is_a_new_case(driver):
    driver.update(opened("wind"))
    driver.update(resolved("wind"))

    assert driver.update(opened("wind", episode=2)) == [(NotificationReason.OPENED, "wind")]


def test_cases_continue_after_a_restart(driver):
    driver.update(opened("wind"))
    driver.update(opened("dark", Severity.INFO))
    driver.book.runs = deserialize(serialize(driver.book.runs))

    assert driver.update(opened("rain")) == [(NotificationReason.ESCALATED, "wind")]
    assert driver.update(resolved("wind"), resolved("rain")) == [
        (NotificationReason.RESOLVED, "wind")
    ]


@pytest.mark.swallows_errors
def test_a_cause_that_raises_is_skipped():
    class Broken(Storm):
        def evidence(self, context):
            raise ZeroDivisionError

    driver = CaseBookDriver(CaseBook({"broken": Broken(), "storm": Storm()}))

    assert driver.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert driver.current_notification().diagnosis.cause == "storm"


@pytest.mark.swallows_errors
@pytest.mark.parametrize("weight", [float("nan"), 1.5, -1.0, "0.5", None])
def test_a_cause_with_an_invalid_weight_is_skipped(weight):
    class BadWeight(Storm):
        def evidence(self, context):
            yield Evidence(weight, "It blows.", 3)
            yield Evidence(0.9, "It blows.", 3)

    driver = CaseBookDriver(CaseBook({"bad_weight": BadWeight()}))

    assert driver.update(opened("wind")) == [(NotificationReason.OPENED, "wind")]
    assert driver.current_notification().diagnosis is None


def test_texts_of_a_cause_are_bounded():
    class LongTexts(Storm):
        title = "storm " * 9999

        def evidence(self, context):
            while True:
                yield Evidence(0.5, "It blows. " * 9999, 3)

        def remedy(self, context):
            return "Stay in. " * 9999

    driver = CaseBookDriver(CaseBook({"long": LongTexts()}))
    driver.update(opened("wind"))

    assert len(serialize(driver.current_notification().diagnosis)) < 64_000


def test_the_number_of_stored_incidents_is_bounded(driver):
    for episode in range(500):
        info = opened("dark", Severity.INFO, episode=episode)
        driver.update(info)
        driver.update(replace(info.incident, state=IncidentState.RESOLVED))
        driver.update(steps=10)

    assert len(driver.book.runs["grpo-7b"].unnotified_incidents) < 30


def test_a_case_without_cause_is_diagnosed_again_some_steps_later():
    class Late(Storm):
        def evidence(self, context):
            if len(context.history["reward"]) >= 4:
                yield Evidence(0.9, "Rewards are known.")

    driver = CaseBookDriver(CaseBook({"late": Late()}))
    driver.update(opened("wind"), values={"reward": 1.0})
    assert driver.current_notification().diagnosis is None

    reasons = driver.update(values={"reward": 1.0}, steps=5)

    assert driver.current_notification().diagnosis.cause == "late"
    assert [reason for reason, _ in reasons] == [NotificationReason.ESCALATED]


def test_a_diagnosis_that_a_further_incident_contradicts_is_withdrawn():
    class WindOnly(Storm):
        def evidence(self, context):
            if "rain" not in context.symptoms:
                yield Evidence(0.9, "It blows.")

    driver = CaseBookDriver(CaseBook({"wind_only": WindOnly()}))
    driver.update(opened("wind"))
    assert driver.current_notification().diagnosis is not None

    driver.update(opened("rain"))

    assert driver.current_notification().diagnosis is None


class Shower(Storm):
    """A cause that explains rain alone, and is more likely than a storm."""

    explains = frozenset({"rain"})

    def evidence(self, context):
        yield from symptom_evidence(context.symptoms.get("rain"), 0.9)


@pytest.mark.parametrize(
    # The lead, whose case it is, is found at step 100.
    ("onset", "cause"),
    [(95, "shower"), (121, "storm")],
)
def test_a_cause_of_what_began_later_is_not_the_title_of_a_case(onset, cause):
    driver = CaseBookDriver(CaseBook({"storm": Storm(), "shower": Shower()}))
    driver.update(opened("wind"))
    driver.update(opened("rain", onset=onset, opened_step=122))
    notification = driver.current_notification()

    assert notification.diagnosis.cause == cause
    assert notification.onset_step == (90 if cause == "storm" else 95)


def test_replicas_that_differ_after_a_nan_loss_do_not_explain_it():
    """Both can be a failing GPU, so they are one case."""
    driver = CaseBookDriver(CaseBook(build_causes()))
    driver.update(opened("nan_or_inf", Severity.CRITICAL))
    driver.update(opened("rank_desync", onset=121, opened_step=122))
    notification = driver.current_notification()

    assert (notification.subject, notification.onset_step) == ("nan_or_inf", 90)
    assert [each.key.detector for each in notification.incidents] == ["nan_or_inf", "rank_desync"]
