"""The tools that change something: who asked is stored and logged, and how often is limited."""

from __future__ import annotations

import json
import logging
import time
from contextlib import closing
from threading import Event
from types import SimpleNamespace

import pytest
from support.mcp_clients import TIMEOUT_SECONDS, call_tools, list_tools
from support.stored_homes import write_run

from sentinel.mcp import action_answers, server
from sentinel.mcp.action_answers import Caller
from sentinel.mcp.server import make_server
from sentinel.store import commands
from sentinel.store.database import connect
from sentinel.store.run_reader import RunReader
from sentinel.store.silences import active_silences, load_acks
from sentinel.web.run_routes import RunView
from sentinel.web.suppression_api import SuppressionApi

ACTIONS = {"acknowledge", "silence", "request_checkpoint", "stop"}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The database of a run with firing incidents."""
    folder = tmp_path_factory.mktemp("home")
    return write_run(folder, run="sick", steps=70, ranks=1, fault_at=30, outcome="")


@pytest.fixture
def make_source(database):
    """Returns a function that makes a source of that run; `why_not` as of `SuppressionApi`."""

    def make(why_not=""):
        suppression = SuppressionApi("sick", database, lambda: why_not)
        view = RunView("sick", RunReader(database), lambda: {"run": "sick"}, database, suppression)
        return SimpleNamespace(
            view=lambda run: view if run == "sick" else None,
            list_runs=lambda _: {"runs": [{"run": "sick"}]},
            path=lambda _: None,
        )

    return make


@pytest.fixture
def allowed(make_source):
    return make_server(make_source(), allow_actions=True)


@pytest.mark.fault("X19")
def test_without_permission_there_is_no_tool_that_changes_anything(make_source, allowed):
    denied = make_server(make_source())
    (answer,) = call_tools(denied, ("stop", {"run": "sick", "reason": "x"}))

    assert not ACTIONS & {*list_tools(denied)}
    assert answer.is_error
    tools = list_tools(allowed)
    assert {*tools} >= ACTIONS
    assert not any(tools[name].annotations.read_only_hint for name in ACTIONS)
    assert tools["stop"].annotations.destructive_hint


def test_an_acknowledgement_and_a_silence_have_the_name_of_the_client(allowed, database, caplog):
    with caplog.at_level(logging.INFO, action_answers.__name__):
        ack, silence = call_tools(
            allowed,
            ("acknowledge", {"run": "sick", "detector": "kl_blowup", "reason": "known\x1b[2J"}),
            ("silence", {"run": "sick", "duration": "2h", "detector": "kl_drift"}),
        )

    assert ack.data["acknowledged"] == "sick/kl_blowup#1"
    assert silence.data["seconds"] == 7200
    with closing(connect(database)) as connection:
        (stored,) = load_acks(connection).values()
        (silenced,) = active_silences(connection, time.time())
    assert (stored.author, stored.comment) == ("mcp mcp", "known[2J")
    assert (silenced.author, silenced.detector) == ("mcp mcp", "kl_drift")
    lines = [each.getMessage() for each in caplog.records if each.name == action_answers.__name__]
    assert lines == [
        "acknowledge (kl_blowup) of run sick by mcp mcp from stdio: known[2J",
        "silence for 2h (kl_drift) of run sick by mcp mcp from stdio: -",
    ]


@pytest.mark.parametrize(
    ("tool", "given", "text"),
    [
        ("acknowledge", {"detector": "kl_blow"}, "kl_blowup"),
        ("acknowledge", {"detector": "gpu_fault"}, "no firing incident"),
        ("silence", {"duration": "soon"}, "is not a duration"),
        ("silence", {"duration": "9000d"}, "is not a duration"),
        ("stop", {}, "reason"),
    ],
)
def test_a_wrong_argument_is_an_error_and_changes_nothing(allowed, tool, given, text):
    (answer,) = call_tools(allowed, (tool, {"run": "sick", **given}))

    assert answer.is_error
    assert text in answer.text


def test_a_request_waits_until_the_agent_of_the_run_refuses_it(allowed, database, monkeypatch):
    def refuse(_):
        with closing(connect(database)) as connection:
            for request in commands.waiting_requests(connection, 0):
                commands.store_refusal(connection, request.name, "its ranks are on several nodes")

    monkeypatch.setattr(action_answers.time, "sleep", refuse)
    (answer,) = call_tools(allowed, ("request_checkpoint", {"run": "sick", "reason": "now"}))

    assert answer.data["status"] == "refused"
    assert answer.data["because"] == "its ranks are on several nodes"


def test_a_request_that_no_agent_takes_says_so(allowed, database, monkeypatch):
    monkeypatch.setattr(action_answers, "OUTCOME_SECONDS", 0.05)
    (answer,) = call_tools(allowed, ("stop", {"run": "sick", "reason": "now"}))

    assert answer.data["status"].startswith("waiting")
    with closing(connect(database)) as connection:
        *_, request = commands.waiting_requests(connection, 0)
    assert request.actions == {"stop"}
    assert request.cause == "stop requested by mcp mcp: now"


def test_a_run_without_an_agent_takes_no_request(make_source):
    served = make_server(make_source("No agent serves it."), allow_actions=True)
    stop, ack = call_tools(
        served, ("stop", {"run": "sick", "reason": "x"}), ("acknowledge", {"run": "sick"})
    )

    assert "No agent takes requests" in stop.text
    assert "No agent serves it." in ack.text


@pytest.mark.fault("X19")
def test_actions_are_limited(make_source, monkeypatch):
    monkeypatch.setattr(server, "ACTIONS_PER_MINUTE", 1)
    call = ("silence", {"run": "sick", "duration": "1h", "detector": "nan_or_inf"})
    answers = call_tools(make_server(make_source(), allow_actions=True), call, call)

    assert [each.is_error for each in answers] == [False, True]
    assert "Too many actions" in answers[-1].text


def test_the_name_of_a_client_is_cleaned_and_bounded():
    caller = Caller.of_client("evil\n\x1b[2J" + "x" * 1000, "ana", "192.0.2.1")

    assert caller.name.startswith("mcp evil [2J")
    assert len(caller.name) <= 80
    assert Caller.of_client("claude", "ana", "192.0.2.1").name == "mcp claude of ana"


def test_a_call_that_takes_too_long_is_an_error(make_source, monkeypatch):
    monkeypatch.setattr(server, "CALL_SECONDS", 0.1)
    source, is_over = make_source(), Event()
    source.view = lambda _: is_over.wait(TIMEOUT_SECONDS)
    (answer,) = call_tools(make_server(source), ("why", {"run": "sick"}))
    is_over.set()

    assert "does not answer in time" in answer.text


def test_an_unexpected_error_shows_nothing_of_itself(make_source, caplog):
    source = make_source()
    source.view = lambda _: json.loads("secret")
    (answer,) = call_tools(make_server(source), ("why", {"run": "sick"}))

    assert answer.text == "Error executing tool why"
    assert "JSONDecodeError" in caplog.text
