"""Messages through apprise: one request each, within a deadline, to permitted addresses only."""

import pytest
from support import webhook_receiver
from support.webhook_receiver import Receiver

from sentinel.model.delivery import AppriseCall
from sentinel.notify.transports.send import send

pytest.importorskip("apprise")
DEADLINE_SECONDS = 240.0


def call(receiver, query="", **settings):
    url = receiver.url.replace("http://", "json://") + query
    return AppriseCall(url, "A title", "A body", **settings)


def test_a_message_arrives():
    with Receiver() as receiver:
        response = send(call(receiver, kind="failure"), deadline=DEADLINE_SECONDS)

    assert (response.status, response.error) == (200, "")
    (request,) = receiver.requests
    assert (request.json["title"], request.json["message"]) == ("A title", "A body")
    assert request.json["type"] == "failure"


def test_a_refusal_is_reported_with_its_delay_and_not_retried():
    mode = webhook_receiver.status(429, Retry_After="7")
    with Receiver(mode) as receiver:
        response = send(call(receiver, "?retry=3&wait=0.1"), deadline=DEADLINE_SECONDS)

    assert (response.status, response.retry_after) == (429, 7.0)
    assert len(receiver.requests) == 1


def test_a_redirect_is_not_followed():
    with Receiver() as target, Receiver(webhook_receiver.redirect(target.url, 307)) as receiver:
        response = send(call(receiver, "?redirect=yes"), deadline=DEADLINE_SECONDS)

    assert response.status == 307
    assert target.requests == []


def test_a_slow_response_ends_at_the_deadline():
    """One byte per 50 ms resets the time-out of the library, but not the deadline."""
    with Receiver(webhook_receiver.drip_body()) as receiver:
        response = send(call(receiver), deadline=2.0)

    assert response.error == "DeadlineExceededError"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("json://192.0.2.1/CANARY", "AddressRefusedError"),
        ("nonsense://CANARY", "AppriseUrlError"),
        ("json://127.0.0.1:9/CANARY", "ConnectionError"),
    ],
    ids=["not encrypted", "unknown service", "refused"],
)
def test_an_error_is_named_by_its_class_and_shows_no_url(url, error, capfd, caplog):
    response = send(AppriseCall(url, "title", "body"), deadline=DEADLINE_SECONDS)

    assert f"{response}" == error
    assert "CANARY" not in "".join([*capfd.readouterr(), caplog.text])
