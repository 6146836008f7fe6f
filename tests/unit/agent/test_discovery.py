"""Discovery of agents, and queries of their state."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from support.certificates import make_certificate
from support.web_servers import make_site

from sentinel.agent.discovery import query_agent, registration_files
from sentinel.agent.registration import AgentRegistration
from sentinel.transport.paths import home_dir
from sentinel.web.server import WebServer

STATE = {"run": "live", "state": "running", "step": 3}


@pytest.fixture
def register():
    """Returns a function that registers the run `live` at a URL and returns the path."""

    def write(url, **others):
        folder = home_dir() / "runs" / "live"
        folder.mkdir(parents=True)
        (folder / "agent.json").write_text(json.dumps({"run": "live", "url": url, **others}))
        (path,) = registration_files()
        return path

    return write


@pytest.fixture
def served():
    server = WebServer(lambda: make_site(lambda: STATE), token="s3cret", own_token="of-this-agent")
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def test_the_state_is_read_with_the_token_and_without_a_proxy(register, served, monkeypatch):
    """With that of the registration; the one of the settings may be unknown here."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert query_agent(register(served, token="of-this-agent")).state.items() >= STATE.items()


def test_an_agent_with_another_token_is_another_agent(register, served):
    run = query_agent(register(served, token="of-an-earlier-agent"))

    assert (run.state, run.problem) == ({}, "the agent is not running")


@pytest.fixture
def serve_tls(tmp_path):
    """Returns a function that starts a server with a web configuration; returns its address."""
    with ExitStack() as stack:

        def start(**tls):
            certificate = make_certificate(tmp_path)
            tls = {"cert_file": str(certificate), "key_file": str(certificate), **tls}
            config = tmp_path / "web.yml"
            config.write_text(json.dumps({"tls_server_config": tls}))
            server = WebServer(
                lambda: make_site(lambda: STATE), web_config_file=config, own_token="own"
            )
            stack.callback(server.stop)
            return f"https://127.0.0.1:{server.start()}", server.certificate_file

        yield start


def test_the_state_is_read_over_tls(register, serve_tls):
    """The certificate is not signed by an authority that this machine trusts."""
    url, certificate = serve_tls()

    assert (
        query_agent(register(url, token="own", certificate_file=str(certificate))).state.items()
        >= STATE.items()
    )


def test_nothing_is_sent_to_a_server_with_another_certificate(register, serve_tls, tmp_path):
    url, _ = serve_tls()
    other = make_certificate((tmp_path / "other").mkdir() or tmp_path / "other")
    path = register(url, token="own", certificate_file=str(other))
    registration = AgentRegistration("live", tmp_path / "targets")
    registration.set_directory(path.parent)
    run = query_agent(path)
    registration.release()

    assert (run.state, run.problem) == ({}, "the agent refuses the TLS connection")


def test_an_agent_that_requires_a_client_certificate_is_not_reported_as_stopped(
    register, serve_tls, tmp_path
):
    authority = make_certificate((tmp_path / "ca").mkdir() or tmp_path / "ca")
    tls = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(authority)}
    url, certificate = serve_tls(**tls)
    path = register(url, token="own", certificate_file=str(certificate))
    registration = AgentRegistration("live", tmp_path / "targets")
    registration.set_directory(path.parent)
    run = query_agent(path)
    registration.release()

    assert (run.state, run.problem) == ({}, "the agent refuses the TLS connection")
    assert f"open {url} in a browser" in run.remedy


def test_another_agent_on_the_port_is_not_taken_for_that_of_a_stopped_run(register, served):
    path = register(served)
    path.write_text(json.dumps({"run": "dead", "url": served, "token": "of-this-agent"}))

    run = query_agent(path)
    assert (run.state, run.problem) == ({}, "the agent is not running")
    assert "sentinel agent --run dead" in run.remedy


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00"])
def test_an_unreadable_registration_is_reported(register, text):
    path = register("http://127.0.0.1:9")
    path.write_text(text)

    run = query_agent(path)
    assert (run.run, "cannot be read" in run.problem) == ("live", True)
