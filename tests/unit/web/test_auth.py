"""Auth: a foreign name or a wrong token gets nothing."""

import asyncio
from base64 import b64encode

import pytest

from sentinel.web.auth import AuthMiddleware


async def _inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def status(gate, path="/metrics", **headers):
    """What the gate answers to one request."""
    sent = []

    async def send(message):
        sent.append(message)

    given = {"host": "localhost"} | headers
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    scope = {"type": "http", "path": path, "method": "GET", "headers": raw}
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9464", "127.0.0.1:80", "[::1]:9464", "10.0.0.7:1", "mine.lan:1"],
)
def test_own_names_and_addresses_are_let_through(host):
    """Prometheus may scrape by any address, and by the names it was told of."""
    assert status(AuthMiddleware(_inner, hosts=["mine.lan"]), host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:9464", "", "127.0.0.1.x"])
def test_foreign_names_are_refused(host):
    """A name pointed at this machine by somebody else's name server opens nothing."""
    assert status(AuthMiddleware(_inner), host=host) == 400


def basic(text):
    return "Basic " + b64encode(text.encode()).decode()


@pytest.mark.parametrize("given", ["Bearer töken", "bearer töken", basic("any:töken")])
def test_the_token_opens(given):
    """By Bearer for scrapers, and as a password for browsers."""
    gate = AuthMiddleware(_inner, "töken")
    raw = given.encode().decode("latin-1") if given.lower().startswith("bearer") else given

    assert status(gate, authorization=raw) == 200


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer s3", "s3cret", "Digest s3cret", "Basic ???", basic("s3cret")],
)
def test_anything_else_does_not(given):
    """Empty, cut, wrongly placed and garbled tokens are all refused."""
    assert status(AuthMiddleware(_inner, "s3cret"), authorization=given) == 401


def test_with_a_token_any_name_will_do():
    """Prometheus may know this machine by a name that it does not know itself."""
    gate = AuthMiddleware(_inner, "s3cret")

    assert status(gate, host="gpu1.cluster.example:1", authorization="Bearer s3cret") == 200
    assert status(gate, host="gpu1.cluster.example:1") == 401


def test_the_probe_is_open_under_any_name():
    """Health is asked for by machines that know neither name nor token."""
    assert status(AuthMiddleware(_inner, "s3cret"), path="/-/healthy", host="evil.example") == 200
