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


def test_the_last_good_checkpoint_is_that_before_the_earliest_incident():
    lead = replace(make_incident("wind"), onset_step=100, last_good_step=90)
    early = replace(make_incident("dark"), onset_step=60, last_good_step=50)
    notification = Notification(NotificationReason.OPENED, lead, 110, NOW, others=(early,))

    assert (notification.onset_step, notification.last_good_step) == (60, 50)


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
