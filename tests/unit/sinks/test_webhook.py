"""Tests of the webhook body, which has the format of Alertmanager, and of its signature."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from math import inf, nan

import pytest
from pydantic import ValidationError
from support.notifications import make_notification, with_diagnosis

from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.finding import Severity
from sentinel.model.message import DRILL_NOTE
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.sinks.webhook import Webhook

URL = "https://receiver.example/hook"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def body(notification, delivery_id="abc"):
    request = Webhook(url=URL).render(notification, delivery_id, None)
    return json.loads(request.body, parse_constant=pytest.fail)


def test_the_body_has_the_format_of_alertmanager():
    sent = body(make_notification())
    (alert,) = sent["alerts"]

    assert sent["version"] == "4"
    assert sent["status"] == alert["status"] == "firing"
    assert (
        sent["commonLabels"]
        == alert["labels"]
        == {
            "alertname": "kl_blowup",
            "run": "grpo-7b",
            "detector": "kl_blowup",
            "severity": "critical",
            "signal": "kl_ref",
        }
    )
    assert alert["annotations"] == {
        "summary": "KL is 2 nats.",
        "description": "Raise the KL coefficient.",
    }
    assert alert["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert alert["endsAt"] == "0001-01-01T00:00:00Z"
    assert sent.keys() == {
        "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels",
        "commonLabels", "commonAnnotations", "externalURL", "alerts", "sentinel",
    }  # fmt: skip


def test_a_resolved_notification_ends_the_same_alert():
    opened, resolved = (
        body(make_notification())["alerts"][0],
        body(make_notification(NotificationReason.RESOLVED))["alerts"][0],
    )

    assert resolved["status"] == "resolved"
    assert resolved["endsAt"] == "2023-11-14T22:14:20.000Z"
    assert resolved["fingerprint"] == opened["fingerprint"]


def test_the_fingerprint_depends_on_the_incident_and_not_on_the_severity():
    def fingerprint(**fields):
        return body(make_notification(**fields))["alerts"][0]["fingerprint"]

    assert fingerprint(severity=Severity.WARNING) == fingerprint(severity=Severity.CRITICAL)
    assert len({fingerprint(), fingerprint(rank=0), fingerprint(episode=2)}) == 3


def test_the_rank_of_the_incident_is_a_label():
    assert body(make_notification(rank=3))["commonLabels"]["rank"] == "3"


def test_the_object_sentinel_contains_the_incident():
    evidence = {"kl": nan, "limit": inf, "why": "x", "steps": 3}
    fields = body(make_notification(evidence=evidence), "abc")["sentinel"]

    assert fields["idempotency_key"] == "abc"
    assert fields["headline"] == "Critical: KL is 2 nats, run grpo-7b"
    assert fields["notification"] == "grpo-7b/kl_blowup#1:opened"
    assert fields["reason"] == "opened"
    assert fields["step"] == 120
    incident = fields["incident"]
    assert incident["key"] == {"run": "grpo-7b", "rank": -1, "detector": "kl_blowup"}
    assert (incident["state"], incident["severity"]) == ("firing", "critical")
    assert (incident["onset_step"], incident["opened_step"]) == (90, 100)
    assert incident["finding"]["evidence"] == {"kl": "nan", "limit": "inf", "why": "x", "steps": 3}


def test_a_drill_is_stated_in_the_notes():
    drill = replace(make_notification(), context=RunContext(is_drill=True), notes=("Late.",))

    assert body(drill)["sentinel"]["notes"] == [DRILL_NOTE, "Late."]


def test_a_cause_is_in_the_annotations_and_does_not_change_the_labels():
    """Otherwise the resolved alert would not match the firing one."""
    plain, named = body(make_notification()), body(with_diagnosis())

    for part in ("groupKey", "groupLabels", "commonLabels"):
        assert named[part] == plain[part]
    assert named["alerts"][0]["fingerprint"] == plain["alerts"][0]["fingerprint"]
    assert named["commonAnnotations"] == {
        "summary": "policy collapse (likely, 83 %): KL is 2 nats.",
        "description": "Go back, and raise `beta`.",
        "cause": "policy_collapse",
        "confidence": "0.83",
        "evidence": "since step 86: KL is 2 nats.\nsince step 95: The reward fell.\n"
        "The KL coefficient is 0.0001.",
    }


def test_the_object_sentinel_contains_diagnosis_and_other_incidents():
    fields = body(with_diagnosis())["sentinel"]

    assert fields["diagnosis"]["cause"] == "policy_collapse"
    assert fields["diagnosis"]["evidence"][0] == {
        "weight": 0.5,
        "text": "KL is 2 nats.",
        "step": 86,
    }
    assert fields["diagnosis"]["last_good_step"] == 80
    assert fields["diagnosis"]["confidence_text"] == "likely, 83 %"
    assert fields["others"] == [
        {
            "incident_name": "grpo-7b/reward_collapse#1",
            "detector": "reward_collapse",
            "severity": "warning",
            "state": "firing",
            "onset_step": 90,
            "opened_step": 100,
            "summary": "It fell.",
        }
    ]


def test_a_large_body_is_truncated_and_keeps_its_labels():
    long = "\U0001f525" * 5000
    notification = make_notification(evidence={f"{long}{n}": long for n in range(99)})
    large = with_diagnosis(notification, others=[long] * 99, remedy=long)

    assert len(Webhook(url=URL).render(large, "abc", None).body) < 65_536
    assert body(large)["commonLabels"] == body(make_notification())["commonLabels"]
    assert body(large)["sentinel"]["incident"]["key"]["detector"] == "kl_blowup"


def test_an_invalid_time_is_rendered_as_none():
    notification = make_notification()
    broken = replace(notification, incident=replace(notification.incident, opened_time=nan))

    assert body(broken)["alerts"][0]["startsAt"] == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        (SECRET, base64.b64decode(SECRET.removeprefix("whsec_"))),
        ("a plain pass phrase", b"a plain pass phrase"),
    ],
)
def test_the_signature_follows_standard_webhooks(secret, key):
    """A receiver verifies it from the raw body and three headers."""
    sink = Webhook(url=URL, secret=secret)
    request = sink.sign(sink.render(make_notification(), "abc", None), sent_at=1_700_000_123.9)

    assert request.headers["webhook-id"] == request.headers["Idempotency-Key"] == "abc"
    assert request.headers["webhook-timestamp"] == "1700000123"
    signed = b"abc.1700000123." + request.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_the_example_of_the_specification_verifies():
    """Standard Webhooks publishes this key, message and signature."""
    sink = Webhook(url=URL, secret=SECRET)
    unsigned = HttpRequest(
        URL, b'{"test": 2432232314}', {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek"}
    )

    assert (
        sink.sign(unsigned, 1_614_265_330).headers["webhook-signature"]
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_a_repeat_has_a_new_signature_and_the_same_id():
    sink = Webhook(url=URL, secret=SECRET)
    request = sink.render(make_notification(), "abc", None)
    first, later = sink.sign(request, 1000.0), sink.sign(request, 2000.0)

    assert first.headers["webhook-signature"] != later.headers["webhook-signature"]
    assert first.headers["webhook-id"] == later.headers["webhook-id"]
    assert first.body == later.body


def test_without_a_secret_nothing_is_signed():
    sink = Webhook(url=URL)
    request = sink.sign(sink.render(make_notification(), "abc", None), 1000.0)

    assert "webhook-signature" not in request.headers
    assert "Authorization" not in request.headers


def test_authorization_is_sent_unchanged():
    sink = Webhook(url=URL, authorization="Bearer x")

    assert sink.render(make_notification(), "abc", None).headers["Authorization"] == "Bearer x"


@pytest.mark.parametrize(
    ("status", "is_accepted"), [(200, True), (204, True), (302, False), (404, False)]
)
def test_any_2xx_is_accepted(status, is_accepted):
    assert Webhook(url=URL).is_accepted(Response(status, "any body")) is is_accepted


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://example.org/CANARY"},
        {"url": "https://me:CANARY@example.org/"},
        {"url": URL, "secret": "whsec_CANARY!"},
        {"url": URL, "authorization": "CANARY\r\nHost: x"},
        {"url": URL, "secret": ["CANARY"]},
        {"url": "https://example.org/CANARY", "sekret": "CANARY"},
    ],
)
def test_invalid_settings_are_refused_and_not_quoted(settings):
    with pytest.raises((ValidationError, TypeError)) as caught:
        Webhook(**settings)
    assert "CANARY" not in str(caught.value)


def test_unencrypted_urls_need_allow_http():
    assert Webhook(url="http://receiver.cluster.local/", allow_http=True).allow_http
