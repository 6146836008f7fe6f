"""Conformance tests of every sink in `sentinel.sinks`, without a list of them."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_type_hints

import pytest
from pydantic import SecretStr
from support.deliveries import payload, text
from support.notifications import make_notification, with_diagnosis

from sentinel.config import plugins
from sentinel.model.delivery import HttpRequest, Response, SignedSink
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason

SINKS = plugins.load_classes("sinks")
NOTIFICATIONS = [
    make_notification(reason, severity=severity, rank=rank)
    for reason in NotificationReason
    for severity in Severity
    for rank in (-1, 0, 7)
]
HOSTILE = make_notification(
    run="<!channel> \u202e" + "&" * 9000,
    detector="`x`",
    summary="\ud83d\x00" * 2000,
    evidence={"\x1b[31m": "x" * 9000, "nan": float("nan")}
    | {f"k{n}": float(n) for n in range(5000)},
)
LONG_EVIDENCE = Evidence(0.5, "\U0001f525" * 9000, 3)
DIAGNOSED = with_diagnosis()
HOSTILE_CAUSE = with_diagnosis(
    HOSTILE,
    others=["\U0001f525" * 9000] * 200,
    cause="<@U1>" * 999,
    title="<!here> \u202e" * 999,
    evidence=(LONG_EVIDENCE,) * 999,
    remedy="\ud83d" * 9000,
)


def secret_fields(sink_class):
    hints = get_type_hints(sink_class)
    names = [field.name for field in fields(sink_class)]
    return [name for name in names if SecretStr in (hints[name], *get_args(hints[name]))]


@pytest.fixture(params=sorted(SINKS), ids=str)
def sink_class(request):
    return SINKS[request.param]


@pytest.fixture
def sink(sink_class):
    """The sink with a canary in every secret."""
    url, secret = "https://receiver.example/CANARY-URL", "CANARY"
    names = secret_fields(sink_class)
    return sink_class(**{name: url if "url" in name else secret for name in names})


def test_a_sink_is_a_dataclass_that_documents_its_settings(sink_class):
    assert is_dataclass(sink_class)
    for field in fields(sink_class):
        assert f"`{field.name}`" in f"{sink_class.__doc__}", f"{field.name} is not in the docstring"


def test_every_notification_is_rendered_as_a_bounded_request(sink):
    for notification in [*NOTIFICATIONS, HOSTILE, DIAGNOSED, HOSTILE_CAUSE]:
        for receipt in (None, "receipt"):
            delivery = sink.render(notification, "0" * 32, receipt)
            assert 0 < len(payload(delivery)) < 65536
            if isinstance(delivery, HttpRequest):
                assert delivery.url.startswith("https://")
                assert all(f"{name}{text}".isascii() for name, text in delivery.headers.items())


def test_rendering_is_deterministic(sink):
    """A receiver must recognize a repeat."""
    notification = make_notification()

    again = sink.render(replace(notification), "a" * 32, None)
    assert sink.render(notification, "a" * 32, None) == again


def test_rendering_does_not_change_the_notification(sink):
    notification, before = make_notification(), make_notification()
    sink.render(notification, "a" * 32, None)

    assert notification == before


def test_a_resolved_notification_differs_from_the_opened_one(sink):
    opened, resolved = make_notification(), make_notification(NotificationReason.RESOLVED)

    assert payload(sink.render(opened, "a", None)) != payload(sink.render(resolved, "a", None))


def test_the_text_contains_finding_and_run(sink):
    body = text(sink.render(make_notification(), "a" * 32, None))

    assert "KL is 2 nats" in body
    assert "grpo-7b" in body


def test_the_text_contains_cause_confidence_evidence_remedy_and_other_incidents(sink):
    body = text(sink.render(DIAGNOSED, "a" * 32, None))
    expected = [
        "policy collapse",
        "likely, 83 %",
        "step 86: KL is 2 nats.",
        "reward collapse",
    ]

    assert all(each.lower() in body.lower() for each in [*expected, "raise", "step 95", "80"])
    assert "Raise the KL coefficient." not in readable(body), "two remedies"


def readable(body):
    """The part of a body that people read; the object `sentinel` is for programs."""
    try:
        fields = json.loads(body)
    except ValueError:
        return body
    return json.dumps({name: part for name, part in fields.items() if name != "sentinel"})


def test_printing_shows_no_secret(sink):
    delivery = sink.render(make_notification(), "a" * 32, None)
    if isinstance(sink, SignedSink):
        delivery = sink.sign(delivery, 1.0)

    assert "CANARY" not in repr(sink) + str(sink) + repr(delivery) + str(delivery)


def test_the_body_does_not_contain_the_url(sink):
    """A body may contain a key that the receiver expects, but never its URL."""
    assert b"CANARY-URL" not in payload(sink.render(make_notification(), "a" * 32, None))


def test_an_error_status_is_not_accepted(sink):
    refused = [Response(status, "no") for status in (301, 400, 404, 429, 500, 503)]
    assert not any(sink.is_accepted(response) for response in refused)


def test_what_can_be_updated_is_a_class_attribute(sink_class):
    assert isinstance(sink_class.can_update, bool)
