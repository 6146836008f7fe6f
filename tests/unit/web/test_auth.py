"""Authentication: foreign host names and wrong tokens are rejected."""

import asyncio
from base64 import b64encode

import pytest

from sentinel.web.auth import AuthMiddleware


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def status(middleware, path="/metrics", **headers):
    """Status of the response to one request."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = {"host": "localhost"} | headers
    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "path": path, "method": "GET", "headers": raw}
    asyncio.run(middleware(scope, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9464", "127.0.0.1:80", "[::1]:9464", "10.0.0.7:1", "mine.lan:1"],
)
def test_own_names_and_all_addresses_are_accepted(host):
    assert status(AuthMiddleware(_app, hosts=["mine.lan"]), host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:9464", "", "127.0.0.1.x"])
def test_foreign_names_are_rejected(host):
    """They may resolve to this machine: DNS rebinding."""
    assert status(AuthMiddleware(_app), host=host) == 400


def basic(text):
    return "Basic " + b64encode(text.encode()).decode()


@pytest.mark.parametrize("value", ["Bearer töken", "bearer töken", basic("any:töken")])
def test_the_token_is_accepted_as_bearer_and_as_password(value):
    middleware = AuthMiddleware(_app, "töken")
    raw = value.encode().decode("latin-1") if value.lower().startswith("bearer") else value

    assert status(middleware, authorization=raw) == 200


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Bearer s3", "s3cret", "Digest s3cret", "Basic ???", basic("s3cret")],
)
def test_wrong_tokens_are_rejected(value):
    assert status(AuthMiddleware(_app, "s3cret"), authorization=value) == 401


def test_with_the_token_any_host_name_is_accepted():
    """Prometheus may use a name that this machine does not know."""
    middleware = AuthMiddleware(_app, "s3cret")

    assert status(middleware, host="gpu1.cluster.example:1", authorization="Bearer s3cret") == 200
    assert status(middleware, host="gpu1.cluster.example:1") == 401


def test_the_probe_needs_no_token_and_accepts_any_host_name():
    assert status(AuthMiddleware(_app, "s3cret"), path="/-/healthy", host="evil.example") == 200
