"""Dates of a diagnosis after the onset of an incident is estimated."""

from __future__ import annotations

from support.notifications import with_diagnosis

from sentinel.model.incident import Onset
from sentinel.model.notification import redate_diagnosis

DIAGNOSIS = with_diagnosis().diagnosis
"""Evidence of steps 86 and 95, and of none; onset 86."""


def steps(diagnosis):
    return [each.step for each in diagnosis.evidence]


def test_the_estimate_of_what_began_first_dates_the_diagnosis():
    redated = redate_diagnosis(DIAGNOSIS, 86, Onset(82, 79, 84, 60))

    assert (redated.onset_step, redated.last_good_step) == (82, 60)
    assert steps(redated) == [82, 95, None]


def test_evidence_that_proves_to_be_the_earliest_dates_it():
    redated = redate_diagnosis(DIAGNOSIS, 95, Onset(70, 68, 72, 40))

    assert (redated.onset_step, redated.last_good_step) == (70, 40)
    assert steps(redated) == [70, 86, None]


def test_later_evidence_changes_only_its_own_step():
    redated = redate_diagnosis(DIAGNOSIS, 95, Onset(90, 88, 92, 80))

    assert redated.onset_step == DIAGNOSIS.onset_step
    assert redated.last_good_step == DIAGNOSIS.last_good_step
    assert steps(redated) == [86, 90, None]


def test_the_onset_of_something_else_changes_nothing():
    assert redate_diagnosis(DIAGNOSIS, 50, Onset(1, 1, 1)) is DIAGNOSIS
