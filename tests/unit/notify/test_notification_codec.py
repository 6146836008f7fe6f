"""Page text: a stored page says what it said, and a damaged one says nothing else."""

import json
from dataclasses import replace
from math import inf, nan

import pytest
from support.notifications import make_notification, with_diagnosis

from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify.notification_codec import UnreadableNotificationError, decode, encode


@pytest.mark.parametrize("reason", list(NotificationReason))
@pytest.mark.parametrize("severity", list(Severity))
def test_a_page_comes_back_as_it_was(reason, severity):
    told = make_notification(reason, severity=severity, rank=3, onset_step=7, summary="KL «2» nats\n")

    assert decode(encode(told)) == told


def test_a_cause_and_the_other_incidents_come_back_as_they_were():
    assert decode(encode(with_diagnosis())) == with_diagnosis()


class Odd:
    """A value as a careless plug-in might put into its evidence."""

    def __str__(self):
        return "odd"


def test_odd_evidence_costs_no_page():
    """What JSON cannot hold is kept as text; a page that cannot be stored would be a lost alert."""
    told = make_notification(
        evidence={"a": nan, "b": inf, "c": 10**400, "d": True, "e": Odd(), "f": None, "g": 5}
    )
    evidence = decode(encode(told)).incident.finding.evidence

    assert evidence == {
        "a": "nan",
        "b": "inf",
        "c": str(10**400),
        "d": 1.0,
        "e": "odd",
        "f": "None",
        "g": 5.0,
    }


def test_odd_evidence_of_another_incident_costs_no_page_either():
    other = make_notification(evidence={"a": nan, "e": Odd()}).incident
    (kept,) = decode(encode(replace(make_notification(), others=(other,)))).others

    assert kept.finding.evidence == {"a": "nan", "e": "odd"}


def test_half_a_character_costs_no_page():
    assert (
        decode(encode(make_notification(summary="half \ud83d of it"))).incident.finding.summary == "half ? of it"
    )


def test_the_text_is_strict_json_that_names_the_episode():
    text = encode(make_notification(evidence={"a": nan}))

    assert json.loads(text, parse_constant=pytest.fail)["episode"] == "grpo-7b/kl_blowup#1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        '{"episode": "x", "page": {}}',
        encode(make_notification()).replace('"critical"', '"loud"'),
        encode(make_notification()).replace('"step": 120', '"step": "many"'),
        encode(make_notification())[:-5],
    ],
)
def test_anything_else_is_unreadable(text):
    with pytest.raises(UnreadableNotificationError) as caught:
        decode(text)
    assert caught.value.__cause__ is None
