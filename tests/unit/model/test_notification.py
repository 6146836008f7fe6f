"""Dates of a notification after the onsets of its incidents are estimated."""

from __future__ import annotations

from dataclasses import replace

from support.notifications import CONTEXT, make_notification, with_diagnosis

from sentinel.model.incident import Onset
from sentinel.model.notification import redate


def test_the_estimate_of_the_incident_that_dates_the_case_dates_it():
    notification = replace(with_diagnosis(), context=CONTEXT)
    lead = replace(notification.incident, onset_step=86, last_good_step=80)
    redated = redate(replace(notification, incident=lead), {lead.name: Onset(82, 79, 84, 60)})

    assert (redated.onset_step, redated.last_good_step) == (82, 60)
    assert [each.step for each in redated.diagnosis.evidence] == [82, 95, None]
    # It is the path of the checkpoint of step 80.
    assert redated.context.checkpoint_path == ""


def test_a_case_begins_with_the_earliest_of_its_evidence():
    notification = with_diagnosis()
    (other,) = notification.others
    fall = replace(other, onset_step=95, last_good_step=80)
    redated = redate(replace(notification, others=(fall,)), {fall.name: Onset(70, 68, 72, 40)})

    assert (redated.onset_step, redated.last_good_step) == (70, 40)
    assert [each.step for each in redated.diagnosis.evidence] == [70, 86, None]


def test_without_a_cause_the_estimate_of_the_lead_counts():
    notification = make_notification()
    redated = redate(notification, {notification.incident.name: Onset(88, 85, 91, None)})

    assert (redated.onset_step, redated.last_good_step) == (88, None)


def test_without_an_estimate_nothing_changes():
    notification = with_diagnosis()

    assert redate(notification, {"other#1": Onset(1, 1, 1)}) is notification
