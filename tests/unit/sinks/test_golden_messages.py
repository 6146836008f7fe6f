"""Each kind of message, as every sink that people read renders it, compared with golden/*.txt.

Write the files again with UPDATE_GOLDEN=1 in the environment of pytest, and read them as someone
who is woken up by them.
"""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
from pathlib import Path

import pytest
from support.message_kinds import message_kinds
from support.notifications import NOW

from sentinel.model.message import build_message
from sentinel.sinks.discord import Discord
from sentinel.sinks.email import Email
from sentinel.sinks.pagerduty import Pagerduty
from sentinel.sinks.slack import Slack

GOLDEN = Path(__file__).parent / "golden"
SENT_AT = NOW + 340.0
DELIVERY = "0123456789abcdef0123456789abcdef"
KINDS = message_kinds()
SINKS = {
    "slack": Slack(url="https://hooks.slack.com/services/T/B/X"),
    "pagerduty": Pagerduty(routing_key="0123456789abcdef0123456789abcdef"),
    "discord": Discord(url="https://discord.com/api/webhooks/1/x"),
    "email": Email(
        host="smtp.example.org", sender="sentinel@example.org", recipients=["team@example.org"]
    ),
}
VARIABLE_NAME = re.compile(r"(?<![\w/.`'-])[a-z]+(?:_[a-z0-9]+)+(?![\w`')])")


def rendered(notification) -> str:
    """The text of the message, and what each sink sends."""
    parts = {"text": build_message(notification, SENT_AT).text}
    for name, sink in SINKS.items():
        delivery = sink.render(notification, DELIVERY, None)
        parts[name] = readable(delivery)
    return "\n\n".join(f"==== {name} ====\n{text.strip()}" for name, text in parts.items()) + "\n"


def readable(delivery) -> str:
    """The delivery as text: JSON with indents, or the headers and the text of a mail."""
    if hasattr(delivery, "body"):
        return json.dumps(json.loads(delivery.body), indent=1, ensure_ascii=False)
    mail = email.message_from_bytes(delivery.message, policy=email.policy.default)
    text = mail.get_content().replace("\r\n", "\n")
    return f"Subject: {mail['Subject']}\n\n{text}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_message_is_as_it_was_read(kind, monkeypatch):
    monkeypatch.setattr("time.time", lambda: SENT_AT)
    text = rendered(KINDS[kind]())
    path = GOLDEN / f"{kind}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_shows_the_name_of_a_variable(kind):
    message = build_message(KINDS[kind](), SENT_AT)
    facts = [fact for fact in message.facts if "(" not in fact]
    shown = (message.headline, message.since, *facts, message.remedy, *message.also)

    assert [VARIABLE_NAME.findall(text) for text in shown] == [[]] * len(shown)


def test_there_is_no_golden_file_without_a_kind():
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(KINDS)
