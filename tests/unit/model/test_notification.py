"""Dates of a diagnosis after the onset of an incident is estimated."""

from __future__ import annotations

from dataclasses import replace

from support.notifications import with_diagnosis
from support.results import make_incident

from sentinel.model.incident import Onset
from sentinel.model.notification import redate_diagnosis

DIAGNOSIS = with_diagnosis().diagnosis
"""Evidence of steps 86 and 95, and of none; onset 86."""

KL, REWARD = (each.incident for each in DIAGNOSIS.evidence[:2])


def steps(diagnosis):
    return [each.step for each in diagnosis.evidence]


def test_the_estimate_of_what_began_first_dates_the_diagnosis():
    redated = redate_diagnosis(DIAGNOSIS, KL, Onset(82, 79, 84, 60), [])

    assert (redated.onset_step, redated.last_good_step) == (82, 60)
    assert steps(redated) == [82, 95, None]


def test_evidence_that_proves_to_be_the_earliest_dates_it():
    redated = redate_diagnosis(DIAGNOSIS, REWARD, Onset(70, 68, 72, 40), [])

    assert (redated.onset_step, redated.last_good_step) == (70, 40)
    assert steps(redated) == [70, 86, None]


def test_later_evidence_changes_only_its_own_step():
    redated = redate_diagnosis(DIAGNOSIS, REWARD, Onset(90, 88, 92, 80), [])

    assert redated.onset_step == DIAGNOSIS.onset_step
    assert redated.last_good_step == DIAGNOSIS.last_good_step
    assert steps(redated) == [86, 90, None]


def test_of_two_incidents_that_began_at_one_step_only_one_is_redated():
    kl, reward, setting = DIAGNOSIS.evidence
    alike = replace(DIAGNOSIS, evidence=(kl, replace(reward, step=86), setting))
    redated = redate_diagnosis(alike, REWARD, Onset(90, 88, 92, 80), [])

    assert [(each.text, each.step) for each in redated.evidence[:2]] == [
        ("KL is 2 nats.", 86),
        ("The reward fell.", 90),
    ]
    assert (redated.onset_step, redated.last_good_step) == (86, 80)


def test_evidence_that_began_before_a_later_estimate_dates_the_diagnosis():
    other = make_incident("reward_collapse")
    other.onset_step, other.last_good_step = 95, 90
    assert other.name == REWARD
    redated = redate_diagnosis(DIAGNOSIS, KL, Onset(110, 108, 112, 100), [other])

    assert (redated.onset_step, redated.last_good_step) == (95, 90)
    assert redated.onset_incident == REWARD
    assert steps(redated) == [95, 110, None]


def test_the_onset_of_something_else_changes_nothing():
    assert redate_diagnosis(DIAGNOSIS, f"{KL}0", Onset(1, 1, 1), []) is DIAGNOSIS
