"""How a case grows: what joins it is told or explained, and what is kept of it is bounded."""

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
def house():
    return CaseBookDriver(CaseBook(build_causes()))


def test_a_reward_that_collapses_is_told_though_a_spike_was_told_before(house):
    house.update(opened("loss_spike"))

    assert house.update(opened("reward_collapse", onset=95)) == [
        (NotificationReason.INCIDENT_ADDED, "loss_spike")
    ]
    assert house.current_notification().others[-1].key.detector == "reward_collapse"


def test_what_the_named_cause_does_not_explain_is_told(house):
    house.update(opened("loss_spike"), opened("nan_or_inf", Severity.CRITICAL))
    assert house.current_notification().diagnosis.cause == "numerical_breakdown"

    told = house.update(opened("reward_collapse", Severity.CRITICAL))
    assert told == [(NotificationReason.INCIDENT_ADDED, "loss_spike")]


def test_each_that_joins_has_a_page_of_its_own():
    lead, others = make_incident("wind"), (make_incident("dark"), make_incident("hail"))
    pages = [
        Notification(NotificationReason.INCIDENT_ADDED, lead, 100, NOW, others=others[:n])
        for n in (1, 2)
    ]

    assert [page.trigger.key.detector for page in pages] == ["dark", "hail"]
    assert len({page.name for page in pages}) == 2


def test_the_last_good_checkpoint_is_from_before_all_that_is_told_together():
    lead = replace(make_incident("wind"), onset_step=100, last_good_step=90)
    early = replace(make_incident("dark"), onset_step=60, last_good_step=50)
    page = Notification(NotificationReason.OPENED, lead, 110, NOW, others=(early,))

    assert (page.onset_step, page.last_good_step) == (60, 50)


def test_a_case_that_never_ends_does_not_grow_for_ever():
    house = CaseBookDriver(CaseBook({"storm": Storm()}))
    house.update(opened("wind", Severity.CRITICAL))
    for episode in range(2, 200):
        house.update(opened("dark", episode=episode))
        ended = resolved("dark")
        house.update(replace(ended, incident=replace(ended.incident, episode=episode)))

    page = house.current_notification()
    assert page.incident.key.detector == "wind"
    assert len(page.others) <= MAX_RESOLVED_PER_CASE + 1
    assert page.others[-1].episode == 199


def test_what_a_run_logs_and_says_does_not_pile_up():
    house = CaseBookDriver(CaseBook({"storm": Storm()}))
    house.update(values={"reward": 0.5})
    for n in range(3 * MAX_NAMES_PER_RUN):
        house.update(values={f"odd/{n}": 1.0})
    (run,) = house.book.runs.values()

    assert len(run.values) <= MAX_NAMES_PER_RUN
    assert run.values["reward"] == 0.5


def test_what_rests_is_still_of_its_case():
    house = CaseBookDriver(CaseBook({"storm": Storm()}))
    house.update(opened("wind", Severity.CRITICAL))
    house.update(replace(make_incident("wind"), state=IncidentState.RESOLVED, resolved_step=120))

    assert house.current_notification().incident.key.detector == "wind"
