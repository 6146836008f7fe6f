"""Authentication: foreign host names and wrong tokens are rejected."""

import asyncio
import json
import time
from base64 import b64encode

import pytest

from sentinel.config.web_config import load_web_config
from sentinel.web import auth
from sentinel.web.auth import AuthMiddleware


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def status(middleware, path="/metrics", **headers):
    """Status of the response to one request."""
    return asyncio.run(answer(middleware, path, **headers))


async def answer(middleware, path="/metrics", **headers):
    sent = []

    async def send(message):
        sent.append(message)

    headers = {"host": "localhost"} | headers
    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "path": path, "method": "GET", "headers": raw}
    await middleware(scope, None, send)
    return sent[0]["status"]


@pytest.mark.fault("X6")
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9464", "127.0.0.1:80", "[::1]:9464", "10.0.0.7:1", "mine.lan:1"],
)
def test_own_names_and_all_addresses_are_accepted(host):
    assert status(AuthMiddleware(_app, hosts=["mine.lan"]), host=host) == 200


@pytest.mark.fault("X6")
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


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_a_probe_needs_no_token_and_accepts_any_host_name(path):
    assert status(AuthMiddleware(_app, "s3cret"), path=path, host="evil.example") == 200


HASH = "$2b$04$7Wnmo2bbySeCXu8y3/skxOm4f1q9R0xEathjAV/tIHHuOgla1CAqS"
"""Of the password "correct", at the lowest cost."""


@pytest.fixture
def protect(tmp_path):
    """Returns a function that makes a middleware with the content of a web configuration."""

    def make(token="", **content):
        path = tmp_path / "web.yml"
        path.write_text(json.dumps(content))
        config = load_web_config(path)
        return AuthMiddleware(_app, token, web_config=lambda: config)

    return make


@pytest.mark.fault("X4")
@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (basic("ana:correct"), 200),
        (basic("ana:wrong"), 401),
        (basic("ana:"), 401),
        (basic("ben:correct"), 401),
        (basic(":correct"), 401),
        (basic("ana:correct\0x"), 401),
        (basic("ana:" + "x" * 100), 401),
        ("Bearer correct", 401),
        ("Basic ???", 401),
        ("", 401),
    ],
)
def test_users_need_their_password(protect, authorization, expected):
    middleware = protect(basic_auth_users={"ana": HASH})

    assert status(middleware, authorization=authorization) == expected
    # The second time from the cache.
    assert status(middleware, authorization=authorization) == expected


@pytest.mark.fault("X4")
def test_with_a_token_and_users_either_is_accepted(protect):
    middleware = protect("s3cret", basic_auth_users={"ana": HASH})

    for authorization in ("Bearer s3cret", basic("any:s3cret"), basic("ana:correct")):
        assert status(middleware, authorization=authorization) == 200
    assert status(middleware, authorization="Bearer correct") == 401


@pytest.mark.fault("X4")
def test_a_wrong_password_of_many_displaces_no_right_one(protect, monkeypatch):
    middleware = protect(basic_auth_users={"ana": HASH})
    assert status(middleware, authorization=basic("ana:correct")) == 200
    checked = []
    monkeypatch.setattr(auth, "_is_password", lambda *given: bool(checked.append(given)))
    for number in range(500):
        assert status(middleware, authorization=basic(f"ana:{number}")) == 401

    assert len(checked) == 500
    assert status(middleware, authorization=basic("ana:correct")) == 200
    assert len(checked) == 500


@pytest.mark.fault("X4")
def test_many_passwords_at_once_are_refused(protect, monkeypatch):
    """Each takes a core for a while; those that wait longest are bounded."""
    middleware = protect(basic_auth_users={"ana": HASH})
    monkeypatch.setattr(auth, "_is_password", lambda *given: bool(time.sleep(0.05)))

    async def all_statuses():
        return await asyncio.gather(
            *(answer(middleware, authorization=basic(f"ana:{number}")) for number in range(30))
        )

    statuses = asyncio.run(all_statuses())
    assert (statuses.count(401), statuses.count(429)) == (8, 22)


@pytest.mark.fault("X4")
def test_the_rate_limit_of_the_file_spares_the_probes(protect):
    middleware = protect(rate_limit={"interval": "1h", "burst": 2})
    statuses = [status(middleware) for _ in range(4)]

    assert statuses == [200, 200, 429, 429]
    for path in ("/-/healthy", "/-/ready"):
        assert status(middleware, path=path) == 200


@pytest.mark.fault("H3")
@pytest.mark.parametrize("path", ["/metrics", "/-/healthy"])
def test_too_many_headers_are_refused(path):
    few = {f"x-{number}": "y" for number in range(90)}
    many = {f"x-{number}": "y" for number in range(100)}

    assert status(AuthMiddleware(_app), path=path, **few) == 200
    assert status(AuthMiddleware(_app), path=path, **many) == 431
    assert status(AuthMiddleware(_app), path=path, long="y" * 17_000) == 431
