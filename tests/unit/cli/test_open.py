"""`sentinel open` without a server of its own: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.agent import discovery, serve_registration
from sentinel.agent.discovery import DiscoveredRun
from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.agent.serve_registration import find_server, register_server, unregister_server
from sentinel.cli.main import app
from sentinel.transport.paths import DATABASE_NAME, run_dir, runtime_dir

AGENT, SERVER = "http://127.0.0.1:13130", "http://127.0.0.1:13120"


@pytest.fixture
def run():
    directory = run_dir("a.b")
    (directory / DATABASE_NAME).touch()
    return directory


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(serve_registration, "find_server", lambda: SERVER)


def open_link(*arguments):
    done = CliRunner().invoke(app, ["open", *arguments])
    return done.exit_code, done.stdout


def test_the_page_of_a_past_run_is_that_of_the_server(run):
    assert open_link("a.b") == (0, f"{SERVER}/runs/a.b/\n")
    assert open_link() == (0, f"{SERVER}/\n")


def test_the_page_of_a_live_run_is_that_of_its_agent(run, monkeypatch):
    (run / REGISTRATION_NAME).write_text("{}")
    state = DiscoveredRun("a.b", AGENT, {"run": "a.b"})
    monkeypatch.setattr(discovery, "query_agent", lambda _: state)

    assert open_link("a.b") == (0, f"{AGENT}/runs/a.b/\n")


def test_without_a_server_it_says_how_to_start_one(run, monkeypatch):
    monkeypatch.setattr(serve_registration, "find_server", lambda: "")
    done = CliRunner().invoke(app, ["open", "a.b"])

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Nothing serves run a.b: start `sentinel serve`, and try again.\n"


def test_an_unknown_run_is_an_error(run):
    assert open_link("c")[0] == 2


def test_as_json(run, monkeypatch):
    assert json.loads(open_link("a.b", "--json")[1]) == {"run": "a.b", "url": f"{SERVER}/runs/a.b/"}
    monkeypatch.setattr(serve_registration, "find_server", lambda: "")
    status, text = open_link("a.b", "--json")
    assert (status, json.loads(text)) == (1, {"run": "a.b", "url": None})


def test_a_display_gets_a_browser_unless_a_link_is_enough(run, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    for arguments in (["a.b"], ["a.b", "--print"], ["a.b", "--json"]):
        open_link(*arguments)

    assert opened == [f"{SERVER}/runs/a.b/"]


def test_behind_ssh_the_tunnel_is_printed(run, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.9 51000 192.0.2.1 22")
    monkeypatch.setenv("USER", "ana")

    assert "ssh -N -L 13120:127.0.0.1:13120 ana@192.0.2.1, then open" in open_link("a.b")[1]


def test_the_address_of_a_server_that_does_not_answer_is_none(monkeypatch):
    register = register_server("http://127.0.0.1:9")

    assert find_server() == ""
    assert register.parent == runtime_dir(make=False)
    unregister_server()
    assert not register.exists()


def test_another_server_keeps_its_address():
    path = register_server("http://127.0.0.1:9")
    path.write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    unregister_server()

    assert path.exists()
