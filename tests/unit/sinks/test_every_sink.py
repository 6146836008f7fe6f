"""Conformance tests of every sink in `sentinel.sinks`, without a list of them."""

import json
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
from pydantic import SecretStr, ValidationError
from support.deliveries import text
from support.notifications import make_notification, with_diagnosis

from sentinel.config import plugins
from sentinel.model.delivery import Response
from sentinel.model.notification import NotificationReason
from sentinel.store import notification_codec
from sentinel.testing import REFUSALS, check_sink

SINKS = plugins.load_classes("sinks")
SETTINGS = {
    "alertmanager": {"url": "https://alertmanager.example"},
    "apprise": {"url": "ntfy://CANARY-URL"},
    "command": {"arguments": ["/bin/true"]},
    "email": {
        "host": "smtp.example.org",
        "sender": "sentinel@example.org",
        "recipients": ["team@example.org", "ana@example.org"],
        "username": "sentinel",
    },
    "mlflow": {"tracking_uri": "https://mlflow.example"},
    "slack_bot": {"channel": "training"},
    "trackio": {"server": "user/space"},
}
"""Settings that a sink needs besides its secrets."""

SENDING_PLAIN_TEXT = {"alertmanager", "command", "email", "otlp", "pagerduty", "webhook"}
"""Sinks whose receivers do not interpret text."""


def secret_fields(sink_class):
    hints = get_type_hints(sink_class)
    names = [field.name for field in fields(sink_class)]
    return [name for name in names if SecretStr in (hints[name], *get_args(hints[name]))]


@pytest.fixture(params=sorted(SINKS), ids=str)
def name(request):
    return request.param


@pytest.fixture
def sink_class(name):
    return SINKS[name]


@pytest.fixture
def settings(name, sink_class):
    """Settings with a canary in every secret."""
    url, secret = "https://receiver.example/CANARY-URL", "CANARY".ljust(32, "0")
    secrets = {each: url if "url" in each else secret for each in secret_fields(sink_class)}
    return secrets | SETTINGS.get(name, {})


@pytest.fixture
def sink(sink_class, settings):
    return sink_class(**settings)


@pytest.mark.fault("X8")
def test_a_sink_keeps_the_contract(name, sink):
    check_sink(sink, markup=name not in SENDING_PLAIN_TEXT)


def test_the_text_contains_cause_confidence_evidence_remedy_and_other_incidents(sink):
    body = text(sink.render(with_diagnosis(), "a" * 32, None))
    shown = readable(body).replace("\\", "")
    expected = [
        "policy collapse",
        "likely, 83 %",
        "KL is 2 nats.",
        "The reward fell.",
        "reward collapse",
    ]

    missing = [each for each in expected if each.lower() not in f"{shown}{body}".lower()]
    assert missing == []
    assert all(each in f"{shown}{body}".lower() for each in ("raise", "step 95", "80"))
    assert "Raise the KL coefficient." not in shown, "two remedies"


def readable(body):
    """The part of a body that people read; the object `sentinel` is for programs."""
    try:
        content = json.loads(body)
    except ValueError:
        return body
    if not isinstance(content, dict):
        return body
    return json.dumps({name: part for name, part in content.items() if name != "sentinel"})


@pytest.mark.parametrize("name", sorted(SINKS.keys() - {"webhook", "command"}))
def test_a_case_that_is_known_to_be_over_shows_no_remedy(sink):
    """The body for programs is the same in every state."""
    body = text(sink.render(make_notification(NotificationReason.RESOLVED), "a" * 32, None))

    assert "Raise the KL coefficient" not in body


def test_a_row_of_the_first_version_is_rendered(sink):
    """Without the context of the run, the number of the update and the title of the detector."""
    row = json.loads(notification_codec.encode(make_notification()))
    for key in ("context", "number"):
        del row["notification"][key]
    del row["notification"]["incident"]["title"]
    old = notification_codec.decode(json.dumps(row))

    assert "KL is 2 nats" in text(sink.render(old, "a" * 32, None)).replace("\\", "")


@pytest.mark.parametrize("name", sorted(name for name, kind in SINKS.items() if kind.can_update))
def test_a_receipt_that_was_stored_renders_an_update(sink):
    """And so does one of another version, which is any text."""
    update = replace(with_diagnosis(), reason=NotificationReason.UPDATED, number=2)
    for receipt in ("C1/1700000000.000001", "900000000000000001", "", "/", "x" * 999):
        assert text(sink.render(update, "a" * 32, receipt))


@pytest.mark.fault("X1")
def test_a_wrong_setting_is_refused_and_not_quoted(sink_class, settings):
    secrets = [each for each in secret_fields(sink_class) if each != "secret"]
    for secret in secrets:
        with pytest.raises(ValidationError) as caught:
            sink_class(**{**settings, secret: ["CANARY"]})
        assert "CANARY" not in str(caught.value)
    with pytest.raises(ValidationError):
        sink_class(**settings, unknown=1)


@pytest.mark.parametrize("body", REFUSALS)
def test_what_accepts_nothing_has_no_receipt(sink, body):
    assert sink.receipt(Response(200, body)) is None
