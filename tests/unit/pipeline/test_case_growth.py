"""Incidents that join a case are updates of it, and the state of a case is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.case_books import CaseBookDriver, Storm, opened, resolved
from support.results import NOW, make_incident

from sentinel.config.settings import build_causes
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.pipeline.cases import MAX_NAMES_PER_RUN, MAX_RESOLVED_PER_CASE, CaseBook


@pytest.fixture
def driver():
    return CaseBookDriver(CaseBook(build_causes()))


def test_an_unexplained_incident_of_an_undiagnosed_case_is_an_update(driver):
    driver.update(opened("loss_spike"))

    assert driver.update(opened("reward_collapse", onset=95)) == [
        (NotificationReason.UPDATED, "loss_spike")
    ]
    assert driver.current_notification().others[-1].key.detector == "reward_collapse"


def test_an_incident_that_the_cause_does_not_explain_is_an_update(driver):
    driver.update(opened("loss_spike"), opened("nan_or_inf", Severity.CRITICAL))
    assert driver.current_notification().diagnosis.cause == "numerical_breakdown"

    notifications = driver.update(opened("reward_collapse", Severity.CRITICAL))
    assert notifications == [(NotificationReason.UPDATED, "loss_spike")]


def test_a_case_without_a_cause_is_dated_by_its_lead():
    lead = replace(make_incident("wind"), onset_step=100, last_good_step=90)
    early = replace(make_incident("dark"), onset_step=60, last_good_step=50)
    notification = Notification(NotificationReason.OPENED, lead, 110, NOW, others=(early,))

    assert (notification.onset_step, notification.last_good_step) == (100, 90)


@pytest.fixture
def dated_driver():
    """A case with the cause storm, at step 1930 after a checkpoint at step 1900."""

    class Weather(Storm):
        """Connects hail with wind; never found itself."""

        explains = frozenset({"wind", "hail"})

        def evidence(self, context):
            return ()

    driver = CaseBookDriver(CaseBook({"storm": Storm(), "weather": Weather()}))
    dates = {"onset": 1930, "last_good_step": 1900}
    driver.update(opened("wind", **dates), opened("rain", **dates))
    return driver


def dates(driver):
    notification = driver.current_notification()
    return notification.onset_step, notification.last_good_step


def test_an_unexplained_incident_does_not_change_the_dates_of_a_case(dated_driver):
    dated_driver.update(opened("hail", onset=1))

    assert [each.key.detector for each in dated_driver.current_notification().others] == [
        "rain",
        "hail",
    ]
    assert dates(dated_driver) == (1930, 1900)


def test_an_explained_incident_does_not_take_the_checkpoint_from_a_case(dated_driver):
    dated_driver.update(opened("dark", onset=1))
    assert dates(dated_driver) == (1930, 1900)

    dated_driver.update(opened("dark", onset=1700, last_good_step=1600, episode=2))
    assert dates(dated_driver) == (1930, 1900)


def test_an_explained_incident_can_date_a_case_earlier_after_the_same_checkpoint(dated_driver):
    reasons = dated_driver.update(opened("dark", onset=1910, last_good_step=1900))

    assert reasons == [(NotificationReason.UPDATED, "wind")]
    assert dates(dated_driver) == (1910, 1900)


def test_a_cause_found_later_does_not_lose_the_checkpoint():
    driver = CaseBookDriver(CaseBook({"storm": Storm()}))
    driver.update(opened("wind", Severity.CRITICAL, onset=1930, last_good_step=1900))
    driver.update(opened("rain", onset=1))

    assert driver.current_notification().diagnosis.cause == "storm"
    assert dates(driver) == (1930, 1900)


def test_another_culprit_is_an_update_and_the_same_is_none():
    driver = CaseBookDriver(CaseBook({"storm": Storm()}))
    driver.update(opened("wind"))
    known = driver.current_notification().incident
    corrected = replace(known, finding=replace(known.finding, rank=3))

    assert driver.update(corrected) == [(NotificationReason.UPDATED, "wind")]
    assert driver.update(corrected) == []


def test_a_case_that_never_resolves_has_bounded_state():
    driver = CaseBookDriver(CaseBook({"storm": Storm()}))
    driver.update(opened("wind", Severity.CRITICAL))
    for episode in range(2, 200):
        driver.update(opened("dark", episode=episode))
        end = resolved("dark")
        driver.update(replace(end, incident=replace(end.incident, episode=episode)))

    notification = driver.current_notification()
    assert notification.incident.key.detector == "wind"
    assert len(notification.others) <= MAX_RESOLVED_PER_CASE + 1
    assert notification.others[-1].episode == 199


def test_the_number_of_stored_values_is_bounded():
    driver = CaseBookDriver(CaseBook({"storm": Storm()}))
    driver.update(values={"reward": 0.5})
    for n in range(3 * MAX_NAMES_PER_RUN):
        driver.update(values={f"unknown/{n}": 1.0})
    (run,) = driver.book.runs.values()

    assert len(run.values) <= MAX_NAMES_PER_RUN
    assert run.values["reward"] == 0.5


def test_an_incident_in_its_cooldown_belongs_to_its_case():
    driver = CaseBookDriver(CaseBook({"storm": Storm()}))
    driver.update(opened("wind", Severity.CRITICAL))
    driver.update(replace(make_incident("wind"), state=IncidentState.RESOLVED, resolved_step=120))

    assert driver.current_notification().incident.key.detector == "wind"
