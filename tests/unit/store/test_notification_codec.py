"""Tests of the JSON encoding of notifications."""

import json
from dataclasses import replace
from math import inf, nan

import pytest
from support.notifications import make_notification, with_diagnosis

from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.store.notification_codec import UnreadableNotificationError, decode, encode


@pytest.mark.parametrize("reason", list(NotificationReason))
@pytest.mark.parametrize("severity", list(Severity))
def test_a_notification_is_decoded_unchanged(reason, severity):
    notification = make_notification(
        reason, severity=severity, rank=3, onset_step=7, summary="KL «2» nats\n"
    )

    assert decode(encode(notification)) == notification


def test_diagnosis_and_other_incidents_are_decoded_unchanged():
    assert decode(encode(with_diagnosis())) == with_diagnosis()


class CustomValue:
    """A value of evidence, as a plug-in may return it, that JSON does not support."""

    def __str__(self):
        return "custom"


def test_evidence_that_json_does_not_support_becomes_text():
    """A notification that cannot be stored would be lost."""
    notification = make_notification(
        evidence={
            "a": nan,
            "b": inf,
            "c": 10**400,
            "d": True,
            "e": CustomValue(),
            "f": None,
            "g": 5,
        }
    )
    evidence = decode(encode(notification)).incident.finding.evidence

    assert evidence == {
        "a": "nan",
        "b": "inf",
        "c": str(10**400),
        "d": 1.0,
        "e": "custom",
        "f": "None",
        "g": 5.0,
    }


def test_evidence_of_other_incidents_becomes_text_too():
    other = make_notification(evidence={"a": nan, "e": CustomValue()}).incident
    (decoded,) = decode(encode(replace(make_notification(), others=(other,)))).others

    assert decoded.finding.evidence == {"a": "nan", "e": "custom"}


def test_a_surrogate_is_replaced():
    notification = make_notification(summary="half \ud83d of it")

    assert decode(encode(notification)).incident.finding.summary == "half ? of it"


def test_the_text_is_strict_json_with_the_name_of_the_incident():
    text = encode(make_notification(evidence={"a": nan}))

    assert json.loads(text, parse_constant=pytest.fail)["incident_name"] == "grpo-7b/kl_blowup#1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        '{"incident_name": "x", "notification": {}}',
        encode(make_notification()).replace('"critical"', '"unknown"'),
        encode(make_notification()).replace('"step": 120', '"step": "many"'),
        encode(make_notification())[:-5],
    ],
)
def test_other_text_is_unreadable(text):
    with pytest.raises(UnreadableNotificationError) as caught:
        decode(text)
    assert caught.value.__cause__ is None
