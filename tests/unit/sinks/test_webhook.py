"""Webhook: readable by what reads Alertmanager, verifiable by what verifies Standard Webhooks."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from math import inf, nan

import pytest
from pydantic import ValidationError
from support.notifications import diagnosed, page

from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.request import Request
from sentinel.sinks.webhook import Webhook

URL = "https://receiver.example/hook"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def body(told, identity="abc"):
    return json.loads(Webhook(url=URL).render(told, identity).body, parse_constant=pytest.fail)


def test_is_what_alertmanager_sends():
    sent = body(page())
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


def test_a_page_that_resolves_ends_the_very_same_alert():
    opened, resolved = (
        body(page())["alerts"][0],
        body(page(NotificationReason.RESOLVED))["alerts"][0],
    )

    assert resolved["status"] == "resolved"
    assert resolved["endsAt"] == "2023-11-14T22:14:20.000Z"
    assert resolved["fingerprint"] == opened["fingerprint"]


def test_an_alert_stays_itself_when_it_worsens_and_no_other_shares_its_fingerprint():
    def fingerprint(**of):
        return body(page(**of))["alerts"][0]["fingerprint"]

    assert fingerprint(severity=Severity.WARNING) == fingerprint(severity=Severity.CRITICAL)
    assert len({fingerprint(), fingerprint(rank=0), fingerprint(episode=2)}) == 3


def test_a_rank_is_a_label_only_where_a_rank_was_judged():
    assert body(page(rank=3))["commonLabels"]["rank"] == "3"


def test_the_whole_incident_is_beside_the_alert():
    told = body(page(evidence={"kl": nan, "limit": inf, "why": "x", "steps": 3}), "abc")["sentinel"]

    assert told["identity"] == "abc"
    assert told["page"] == "grpo-7b/kl_blowup#1:opened"
    assert told["reason"] == "opened"
    assert told["step"] == 120
    incident = told["incident"]
    assert incident["key"] == {"run": "grpo-7b", "rank": -1, "detector": "kl_blowup"}
    assert (incident["state"], incident["severity"]) == ("firing", "critical")
    assert (incident["onset_step"], incident["opened_step"]) == (90, 100)
    assert incident["finding"]["evidence"] == {"kl": "nan", "limit": "inf", "why": "x", "steps": 3}


def test_a_cause_is_in_the_annotations_and_labels_stay_those_of_the_first_incident():
    """Else the end of a case that was named meanwhile would not match its beginning."""
    plain, named = body(page()), body(diagnosed())

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


def test_the_diagnosis_and_the_other_incidents_are_there_for_programs():
    told = body(diagnosed())["sentinel"]

    assert told["diagnosis"]["cause"] == "policy_collapse"
    assert told["diagnosis"]["evidence"][0] == {"weight": 0.5, "text": "KL is 2 nats.", "step": 86}
    assert told["diagnosis"]["last_good_step"] == 80
    assert told["diagnosis"]["belief"] == "likely, 83 %"
    assert told["others"] == [
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


def test_a_message_that_grows_too_large_says_less_and_stays_the_same_alert():
    fire = "\U0001f525" * 5000
    told = page(evidence={f"{fire}{n}": fire for n in range(99)})
    large = diagnosed(told, others=[fire] * 99, remedy=fire)

    assert len(Webhook(url=URL).render(large, "abc").body) < 65_536
    assert body(large)["commonLabels"] == body(page())["commonLabels"]
    assert body(large)["sentinel"]["incident"]["key"]["detector"] == "kl_blowup"


def test_times_that_are_none_cost_no_page():
    told = page()
    broken = replace(told, incident=replace(told.incident, opened_time=nan))

    assert body(broken)["alerts"][0]["startsAt"] == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        (SECRET, base64.b64decode(SECRET.removeprefix("whsec_"))),
        ("a plain pass phrase", b"a plain pass phrase"),
    ],
)
def test_the_signature_is_that_of_standard_webhooks(secret, key):
    """Verified as the specification's receivers do, from the raw body and the three headers."""
    sink = Webhook(url=URL, secret=secret)
    post = sink.stamp(sink.render(page(), "abc"), now=1_700_000_123.9)

    assert post.headers["webhook-id"] == post.headers["Idempotency-Key"] == "abc"
    assert post.headers["webhook-timestamp"] == "1700000123"
    signed = b"abc.1700000123." + post.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert post.headers["webhook-signature"] == f"v1,{expected}"


def test_the_example_of_the_specification_verifies():
    """Key, message and signature as published by Standard Webhooks."""
    sink = Webhook(url=URL, secret=SECRET)
    unsigned = Request(URL, b'{"test": 2432232314}', {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek"})

    assert (
        sink.stamp(unsigned, 1_614_265_330).headers["webhook-signature"]
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_every_try_is_dated_anew_and_keeps_its_identity():
    sink = Webhook(url=URL, secret=SECRET)
    post = sink.render(page(), "abc")
    first, later = sink.stamp(post, 1000.0), sink.stamp(post, 2000.0)

    assert first.headers["webhook-signature"] != later.headers["webhook-signature"]
    assert first.headers["webhook-id"] == later.headers["webhook-id"]
    assert first.body == later.body


def test_without_a_secret_nothing_is_signed():
    post = Webhook(url=URL).stamp(Webhook(url=URL).render(page(), "abc"), 1000.0)

    assert "webhook-signature" not in post.headers
    assert "Authorization" not in post.headers


def test_authorization_is_sent_as_it_is():
    sink = Webhook(url=URL, authorization="Bearer x")

    assert sink.render(page(), "abc").headers["Authorization"] == "Bearer x"


@pytest.mark.parametrize(
    ("status", "taken"), [(200, True), (204, True), (302, False), (404, False)]
)
def test_any_2xx_counts(status, taken):
    assert Webhook(url=URL).accepted(status, "whatever") is taken


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://example.org/CANARY"},
        {"url": "https://me:CANARY@example.org/"},
        {"url": URL, "secret": "whsec_CANARY!"},
        {"url": URL, "authorization": "CANARY\r\nHost: x"},
        {"url": URL, "secret": ["CANARY"]},
        {"url": "https://example.org/CANARY", "sekret": "CANARY"},
    ],
)
def test_wrong_settings_are_refused_and_not_repeated(wrong):
    with pytest.raises((ValidationError, TypeError)) as caught:
        Webhook(**wrong)
    assert "CANARY" not in str(caught.value)


def test_plain_http_to_others_must_be_asked_for():
    assert Webhook(url="http://receiver.cluster.local/", allow_http=True).allow_http
