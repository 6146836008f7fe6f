"""The tools at `/mcp` of the server of pages: login and host are checked as for all routes."""

from __future__ import annotations

import json
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx2
import pytest
import requests
from mcp.client.streamable_http import streamable_http_client
from support.mcp_clients import TIMEOUT_SECONDS, call_tools, list_tools
from support.rank_processes import until
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.mcp import run_answers
from sentinel.mcp import server as mcp_server
from sentinel.mcp.http_site import McpSite
from sentinel.web import auth
from sentinel.web.home.home_site import HomeSite
from sentinel.web.server import WebServer

LISTED = {"total": 0, "matched": 0, "runs": []}
SOURCE = SimpleNamespace(list_runs=lambda _: LISTED, view=lambda _: None, path=lambda _: None)
BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"accept": "application/json, text/event-stream"}
BEARER = {"authorization": "Bearer s3cret"}


@contextmanager
def serving(*, allow_actions=False, **options):
    """The address of the tools of a server without runs."""
    site = McpSite(HomeSite(SOURCE), SOURCE, allow_actions=allow_actions)
    server = WebServer(lambda: site, **options)
    try:
        yield f"http://127.0.0.1:{server.start()}/mcp"
    finally:
        server.stop()


@asynccontextmanager
async def connect_to(address, headers=BEARER):
    async with (
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_SECONDS) as client,
        streamable_http_client(address, http_client=client) as streams,
    ):
        yield streams


def post(address, body=BODY, **headers):
    headers = ACCEPT | {"connection": "close"} | headers
    return requests.post(address, json=body, headers=headers, timeout=TIMEOUT_SECONDS)


def test_a_client_with_the_token_calls_tools_by_both_versions_of_the_protocol():
    with serving(token="s3cret") as address:
        for mode in ("auto", "legacy"):
            tools = list_tools(connect_to(address), mode=mode)
            listed, path = call_tools(
                connect_to(address),
                ("list_runs", {}),
                ("replay", {"path": "/etc/passwd"}),
                mode=mode,
            )
            assert {"health", "why", "wait"} <= {*tools}
            assert "stop" not in tools
            assert listed.data == LISTED
            assert "takes the id of a run" in path.text


@pytest.mark.fault("X19")
def test_requests_pass_the_checks_of_all_routes():
    with serving(token="s3cret") as address:
        answers = [
            post(address),
            post(address, authorization="Bearer wrong"),
            post(address, **BEARER, origin="http://evil.example"),
            post(address, **BEARER, **{"sec-fetch-site": "cross-site"}),
            post(address, **BEARER, **{"content-type": "text/plain"}),
            post(address, BODY | {"params": "x" * auth.MAX_BODY_BYTES}, **BEARER),
            requests.get(address, headers=BEARER | ACCEPT, timeout=TIMEOUT_SECONDS),
        ]

    assert [each.status_code for each in answers] == [401, 401, 403, 403, 415, 413, 405]


def test_without_a_token_only_this_machine_is_answered():
    with serving(allow_actions=True) as address:
        tools = list_tools(connect_to(address, {}))
        foreign = post(address, host="evil.example")

    assert "stop" in tools
    assert foreign.status_code == 400


def test_calls_are_limited(monkeypatch):
    monkeypatch.setattr(auth, "MAX_CALLS_AT_ONCE", 2)
    monkeypatch.setattr(auth, "CALLS_PER_MINUTE", 0.1)
    with serving() as address:
        answers = [post(address) for _ in range(3)]

    assert [each.status_code for each in answers][-1] == 429
    assert answers[-1].headers["retry-after"]


@pytest.mark.parametrize("mode", ["client leaves", "server ends"])
def test_a_wait_ends_when_its_client_has_gone_or_the_server_ends(monkeypatch, mode):
    looks = []
    monkeypatch.setattr(
        run_answers, "waited", lambda *_, **__: looks.append(time.monotonic()) or {}
    )
    monkeypatch.setattr(mcp_server, "LOOK_SECONDS", 0.05)
    # Longer than the test waits for its end.
    given = {"run": "x", "until": ["unhealthy"], "seconds": 300}
    call = {"method": "tools/call", "params": {"name": "wait", "arguments": given}}
    with serving() as address:
        port = urlsplit(address).port
        client = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        headers = ACCEPT | {"content-type": "application/json"}
        client.request("POST", "/mcp", json.dumps(BODY | call), headers)
        until(lambda: looks, TIMEOUT_SECONDS, "the wait has begun")
        if mode == "client leaves":
            client.close()
            until(lambda: looks[-1] + 1.0 < time.monotonic(), TIMEOUT_SECONDS, "the wait has ended")
    if mode == "server ends":
        assert client.getresponse().status == 503
        client.close()


def test_a_package_that_cannot_be_used_is_an_error_of_every_request(monkeypatch):
    def fail(*_, **__):
        raise TypeError("an argument of a later version")

    monkeypatch.setattr(mcp_server, "make_server", fail)
    with serving() as address:
        answers = [post(address) for _ in range(2)]

    assert [each.status_code for each in answers] == [501, 501]
    assert answers[0].text == "The package mcp cannot be used: TypeError.\n"


def test_a_package_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentinel.mcp.server", None)
    with serving() as address:
        answers = [post(address) for _ in range(2)]
    done = CliRunner().invoke(app, ["mcp"])

    assert [each.status_code for each in answers] == [501, 501]
    assert "too old" in answers[0].text
    assert done.exit_code == 2
    assert "pip install --upgrade 'train-sentinel[mcp]'" in done.stderr


@pytest.mark.parametrize("arguments", [["mcp"], ["serve", "--allow-actions", "--port", "0"]])
def test_without_the_package_a_command_names_the_extra(arguments, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = CliRunner().invoke(app, arguments)

    assert done.exit_code == 2
    assert "pip install 'train-sentinel[mcp]'" in done.stderr
