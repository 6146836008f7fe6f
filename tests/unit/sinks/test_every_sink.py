"""What every sink owes: each file of the room is held to it, with no entry here."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_type_hints

import pytest
from pydantic import SecretStr
from support.notifications import diagnosed, page

from sentinel.config import plugins
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.request import SignedSink

SINKS = plugins.load_classes("sinks")
PAGES = [
    page(reason, severity=severity, rank=rank)
    for reason in NotificationReason
    for severity in Severity
    for rank in (-1, 0, 7)
]
HOSTILE = page(
    run="<!channel> \u202e" + "&" * 9000,
    detector="`x`",
    summary="\ud83d\x00" * 2000,
    evidence={"\x1b[31m": "x" * 9000, "nan": float("nan")}
    | {f"k{n}": float(n) for n in range(5000)},
)
WORDY = Evidence(0.5, "\U0001f525" * 9000, 3)
DIAGNOSED = diagnosed()
HOSTILE_CAUSE = diagnosed(
    HOSTILE,
    others=["\U0001f525" * 9000] * 200,
    cause="<@U1>" * 999,
    title="<!here> \u202e" * 999,
    evidence=(WORDY,) * 999,
    remedy="\ud83d" * 9000,
)


def secret_fields(kind):
    hints = get_type_hints(kind)
    return [f.name for f in fields(kind) if SecretStr in (hints[f.name], *get_args(hints[f.name]))]


@pytest.fixture(params=sorted(SINKS), ids=str)
def kind(request):
    return SINKS[request.param]


@pytest.fixture
def sink(kind):
    """The sink with a canary in every secret."""
    address, other = "https://receiver.example/CANARY-URL", "CANARY"
    return kind(**{name: address if "url" in name else other for name in secret_fields(kind)})


def test_is_a_dataclass_whose_every_setting_is_told(kind):
    assert is_dataclass(kind)
    for field in fields(kind):
        assert f"`{field.name}`" in f"{kind.__doc__}", f"{field.name} is not in the docstring"


def test_words_every_page_as_a_post(sink):
    for told in [*PAGES, HOSTILE, DIAGNOSED, HOSTILE_CAUSE]:
        post = sink.render(told, "0" * 32)
        assert post.url.startswith("https://")
        assert 0 < len(post.body) < 65536
        assert all(name.isascii() and value.isascii() for name, value in post.headers.items())


def test_words_the_same_page_the_same_way_every_time(sink):
    """A repeat must be recognisable as one, so wording knows no clock and no chance."""
    told = page()

    assert sink.render(told, "a" * 32) == sink.render(replace(told), "a" * 32)


def test_the_wording_does_not_change_the_page(sink):
    told, before = page(), page()
    sink.render(told, "a" * 32)

    assert told == before


def test_a_resolved_page_reads_differently(sink):
    assert sink.render(page(), "a").body != sink.render(page(NotificationReason.RESOLVED), "a").body


def test_the_text_says_what_happened(sink):
    body = sink.render(page(), "a" * 32).body.decode()
    if sink.render(page(), "a").headers.get("Content-Type") == "application/json":
        body = json.dumps(json.loads(body), ensure_ascii=False)

    assert "KL is 2 nats." in body
    assert "grpo-7b" in body


def test_the_text_says_what_is_behind_it_and_what_else_is(sink):
    """The cause, how far it is believed in, why, what to do, and the other incidents."""
    body = sink.render(DIAGNOSED, "a" * 32).body.decode()
    words = ["policy collapse", "likely, 83 %", "since step 86: KL is 2 nats.", "reward_collapse"]

    assert all(word.lower() in body.lower() for word in [*words, "raise", "step 95", "80"])
    assert "Raise the KL coefficient." not in json.dumps(readable(body)), "whose advice counts?"


def readable(body):
    """What a receiver shows of a body; the whole page beside it is for programs."""
    told = json.loads(body)
    return {name: part for name, part in told.items() if name != "sentinel"}


def test_nothing_printed_holds_a_secret(sink):
    post = sink.render(page(), "a" * 32)
    if isinstance(sink, SignedSink):
        post = sink.sign(post, 1.0)

    assert "CANARY" not in repr(sink) + str(sink) + repr(post) + str(post)


def test_the_body_does_not_tell_the_address(sink):
    """Some receivers want a key in the body; none needs to be told its own address."""
    assert b"CANARY-URL" not in sink.render(page(), "a" * 32).body


def test_a_refusal_is_no_yes(sink):
    assert not any(sink.is_accepted(status, "no") for status in (0, 301, 400, 404, 429, 500, 503))
