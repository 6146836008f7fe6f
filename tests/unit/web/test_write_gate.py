"""The gate of requests that change something, on real servers."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest
import requests
from support.certificates import make_certificate
from support.results import RUN
from support.web_servers import TIMEOUT_SECONDS, get, servers

from sentinel.store.database import connect
from sentinel.store.silences import active_silences
from sentinel.web.auth import WRITE_TOKEN_HEADER, WRITES_PER_MINUTE, TokenBucket
from sentinel.web.suppression_api import SuppressionApi

pytestmark = pytest.mark.fault("X5")

HASH = "$2b$04$7Wnmo2bbySeCXu8y3/skxOm4f1q9R0xEathjAV/tIHHuOgla1CAqS"
"""Of the password "correct", at the lowest cost."""
SILENCE = b'{"for": "2h"}'


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sentinel.db"
    connect(path).close()
    return path


@pytest.fixture
def serve(path):
    with servers() as start:
        yield lambda **given: start(suppression=SuppressionApi(RUN, path), **given)


def post(url, body=SILENCE, path="/api/silence", *, token="", **headers):
    """Headers with None are not sent."""
    headers = {name.replace("_", "-"): text for name, text in headers.items()}
    defaults = {"content-type": "application/json", "connection": "close"}
    if token:
        headers[WRITE_TOKEN_HEADER] = token
    return requests.post(url + path, body, headers=defaults | headers, timeout=TIMEOUT_SECONDS)


def write_token(url, **headers):
    return get(url + "/api/write-token", **headers).json()["token"]


def silence_count(path):
    with closing(connect(path)) as connection:
        return len(active_silences(connection, 0))


def test_a_page_of_the_server_can_silence(serve, path):
    """As a browser sends it."""
    url = serve()
    answer = post(url, token=write_token(url), origin=url, sec_fetch_site="same-origin")

    assert (answer.status_code, answer.json()["silence"]["author"]) == (200, "web page")
    assert silence_count(path) == 1


def test_a_script_with_the_token_needs_nothing_more(serve, path):
    url = serve(token="s3cret")

    assert post(url, authorization="Bearer s3cret").status_code == 200
    assert silence_count(path) == 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"origin": "http://evil.example"}),
        (403, {"origin": "null"}),
        (403, {"origin": "http://127.0.0.1:1"}),
        (403, {"origin": "https://127.0.0.1"}),
        (403, {"sec_fetch_site": "cross-site"}),
        (403, {"sec_fetch_site": "same-site"}),
        (403, {"sec_fetch_site": "none"}),
        (415, {"content_type": "text/plain"}),
        (415, {"content_type": "application/x-www-form-urlencoded"}),
        (415, {"content_type": "application/json-patch+json"}),
        (415, {"content_type": None}),
        (400, {"host": "evil.example"}),
        (400, {"host": "evil.example", "origin": "http://evil.example"}),
    ],
)
def test_what_other_pages_can_send_is_refused(serve, path, status, headers):
    """Even with the token of the page, which they cannot have."""
    url = serve()

    assert post(url, token=write_token(url), **headers).status_code == status
    assert silence_count(path) == 0


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (403, b'{"text": "x"}', {"origin": "http://evil.example"}),
        (403, b'{"text": "x"}', {"token": "x"}),
        (415, b'{"text": "x"}', {"content_type": "text/plain"}),
        (413, b'{"text": "' + b"x" * 20_000 + b'"}', {}),
    ],
)
def test_a_note_passes_the_same_gate(serve, status, body, headers):
    url = serve()
    given = {"token": write_token(url)} | headers

    assert post(url, body, "/api/note", **given).status_code == status
    assert get(url + "/api/note").json() is None


@pytest.mark.parametrize("token", ["", "x", "€".encode().decode("latin-1")])
def test_without_the_token_of_the_page_a_browser_cannot_write(serve, path, token):
    url = serve()

    assert post(url, token=token, origin=url, sec_fetch_site="same-origin").status_code == 403
    assert silence_count(path) == 0


def test_a_password_that_the_browser_sends_by_itself_is_not_enough(serve, path):
    """Basic authentication: a page elsewhere can make the browser send it."""
    url = serve(token="s3cret")
    basic = requests.auth._basic_auth_str("any", "s3cret")

    assert post(url, authorization=basic).status_code == 403
    token = write_token(url, authorization=basic)
    assert post(url, authorization=basic, token=token).status_code == 200
    assert post(url, token=token).status_code == 401
    assert silence_count(path) == 1


def test_the_user_of_the_web_configuration_is_the_author(serve, tmp_path):
    certificate = make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    tls = {"cert_file": str(certificate), "key_file": str(certificate)}
    config.write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": {"ana": HASH}}))
    url = serve(web_config_file=config)
    given = {"verify": str(certificate), "timeout": TIMEOUT_SECONDS}
    right, wrong = {"auth": ("ana", "correct")} | given, {"auth": ("ana", "wrong")} | given
    token = requests.get(url + "/api/write-token", **right).json()["token"]
    headers = {WRITE_TOKEN_HEADER: token, "origin": url, "content-type": "application/json"}
    body = b'{"for": "2h", "author": "another"}'
    answer = requests.post(url + "/api/silence", body, headers=headers, **right)
    refused = requests.post(url + "/api/silence", body, headers=headers, **wrong)

    assert (answer.json()["silence"]["author"], refused.status_code) == ("ana", 401)


def test_a_page_behind_a_proxy_has_the_public_address(serve, path):
    url = serve(public_url="https://Runs.example.org:443/one")
    host = {"host": "runs.example.org"}
    token = write_token(url, **host)

    assert post(url, token=token, origin="https://runs.example.org", **host).status_code == 200
    assert post(url, token=token, origin="https://evil.example", **host).status_code == 403
    assert silence_count(path) == 1


@pytest.mark.parametrize("path_", ["/", "/api/run", "/metrics", "/nowhere", "/-/healthy"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_no_other_route_and_method_writes(serve, method, path_):
    url = serve()
    plain = requests.request(method, url + path_, timeout=TIMEOUT_SECONDS)
    headers = {WRITE_TOKEN_HEADER: write_token(url), "content-type": "application/json"}
    permitted = requests.request(method, url + path_, headers=headers, timeout=TIMEOUT_SECONDS)

    assert plain.status_code == 415
    assert "access-control-allow-origin" not in plain.headers
    assert permitted.status_code in {404, 405}


def test_a_long_body_is_refused_however_it_is_sent(serve, path):
    url = serve()
    long = b'{"for": "2h", "reason": "' + b"x" * 20_000 + b'"}'

    assert post(url, long, token=write_token(url)).status_code == 413
    chunks = (long[start : start + 100] for start in range(0, len(long), 100))
    assert post(url, chunks, token=write_token(url)).status_code == 413
    assert silence_count(path) == 0


def test_writes_have_a_rate_limit(serve, path):
    url = serve(token="s3cret")
    written = 0
    while (limited := post(url, authorization="Bearer s3cret")).status_code == 200:
        written += 1

    # More only if writing them took long.
    assert written >= WRITES_PER_MINUTE
    assert limited.status_code == 429
    assert 1 <= int(limited.headers["retry-after"]) <= 7
    assert get(url + "/api/run", authorization="Bearer s3cret").ok


def test_a_token_bucket_gives_a_burst_and_then_one_per_interval():
    now = [0.0]
    bucket = TokenBucket(6.0, 2, lambda: now[0])

    assert [bucket.take(), bucket.take()] == [0.0, 0.0]
    assert bucket.take() == pytest.approx(6.0)
    now[0] = 5.0
    assert bucket.take() == pytest.approx(1.0)
    now[0] = 6.0
    assert bucket.take() == 0.0
    now[0] = 600.0
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, pytest.approx(6.0)]


def test_refused_writes_are_logged_and_cannot_fill_the_log(serve, caplog):
    caplog.set_level(logging.INFO, "sentinel.web.auth")
    url = serve()
    for _ in range(30):
        requests.post(url + "/api/silence%0aforged", timeout=TIMEOUT_SECONDS)
    lines = [record.getMessage() for record in caplog.records]

    assert lines[0].startswith("Refused POST /api/silence forged of 127.0.0.1: The content type")
    assert 1 <= len(lines) <= 12
