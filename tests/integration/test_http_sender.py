"""Tests of one HTTP request: its deadline, its limits, and the secrecy of its URL."""

import gzip
import logging
import socket
import ssl
import threading
import time
import warnings
from http.client import HTTPConnection

import pytest
from support import webhook_receiver
from support.certificates import make_certificate, server_context
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.model.delivery import HttpRequest
from sentinel.notify.transports.abortable_connection import (
    AbortableConnections,
    check_peer_address,
)
from sentinel.notify.transports.errors import AddressRefusedError, DeadlineExceededError
from sentinel.notify.transports.http import MAX_RESPONSE_BYTES
from sentinel.notify.transports.send import send

DEADLINE_SECONDS = 0.3
TIMEOUT_SECONDS = 60.0
"""Long enough for a busy machine, and shorter than a receiver hangs."""


def make_request(url, **changes):
    return HttpRequest(url, b'{"a": 1}', {"Content-Type": "application/json"}, **changes)


def wait_for_senders():
    """Wait until every sending thread has ended."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while any(thread.name == "sentinel-send" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a sending thread outlived its request"
        time.sleep(0.01)


def test_the_response_is_returned():
    with Receiver(webhook_receiver.status(429, b"slow down", Retry_After="3")) as receiver:
        response = send(make_request(receiver.url))

    assert (response.status, response.body, response.retry_after, response.error) == (
        429,
        "slow down",
        3.0,
        "",
    )
    assert receiver.requests[0].body == b'{"a": 1}'
    assert receiver.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.fault("D8")
@pytest.mark.parametrize(
    "mode", [webhook_receiver.hang, webhook_receiver.drip_header, webhook_receiver.drip_body]
)
def test_the_deadline_bounds_the_whole_exchange(mode):
    """One byte per 50 ms resets the timeout of a socket, but not the deadline."""
    started = time.monotonic()
    with Receiver(mode()) as receiver, deadlines_from_silence(receiver):
        response = send(make_request(receiver.url), deadline=DEADLINE_SECONDS)
        elapsed = time.monotonic() - started
        wait_for_senders()

    assert (response.status, response.error) == (0, "DeadlineExceededError")
    assert DEADLINE_SECONDS <= elapsed < TIMEOUT_SECONDS < webhook_receiver.MAX_HANG_SECONDS


@pytest.mark.fault("D8")
def test_the_body_is_read_up_to_the_limit():
    with Receiver(webhook_receiver.endless()) as receiver:
        response = send(make_request(receiver.url))
        wait_for_senders()

    assert (response.status, len(response.body)) == (200, MAX_RESPONSE_BYTES)


@pytest.mark.fault("D8")
def test_a_compressed_body_is_not_decompressed():
    """A small body could become gigabytes."""
    bomb = gzip.compress(bytes(10_000_000))
    with Receiver(webhook_receiver.status(200, bomb, Content_Encoding="gzip")) as receiver:
        response = send(make_request(receiver.url))

    assert response.status == 200
    assert len(response.body) <= len(bomb) < MAX_RESPONSE_BYTES


@pytest.mark.fault("D7")
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code):
    with Receiver() as target, Receiver(webhook_receiver.redirect(target.url, code)) as receiver:
        response = send(make_request(receiver.url))

    assert response.status == code
    assert target.requests == []


@pytest.mark.fault("D7")
def test_the_body_of_a_redirect_is_read_up_to_the_limit():
    with Receiver(webhook_receiver.endless(302, Location="http://127.0.0.1:9/")) as receiver:
        response = send(make_request(receiver.url), deadline=TIMEOUT_SECONDS)
        wait_for_senders()

    assert (response.status, len(response.body)) == (302, MAX_RESPONSE_BYTES)


@pytest.mark.parametrize("mode", [webhook_receiver.not_http, webhook_receiver.hang_up])
def test_an_invalid_response_is_an_error_named_by_its_class(mode):
    with Receiver(mode()) as receiver:
        response = send(make_request(receiver.url))

    assert response.status == 0
    assert response.error.isidentifier()


@pytest.mark.fault("D1")
def test_a_refused_connection_is_an_error_named_by_its_class():
    with Receiver() as receiver:
        url = receiver.url
    response = send(make_request(url))

    assert response.error == "ConnectionRefusedError"
    assert "services" not in repr(response)


@pytest.mark.fault("D1")
def test_an_unknown_host_is_an_error_named_by_its_class(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert send(make_request("https://receiver.invalid/services/X")).error == "gaierror"


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    "url", ["http://example.org/x", "https://user:pw@example.org/", "nonsense"]
)
def test_an_unsafe_url_is_refused_before_name_resolution(url):
    assert send(make_request(url)).error == "AddressRefusedError"


@pytest.mark.fault("D15")
def test_a_request_to_this_machine_bypasses_the_proxy(monkeypatch):
    with Receiver() as receiver, Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert send(make_request(receiver.url)).status == 200
        assert proxy.requests == []


@pytest.mark.fault("D15")
def test_a_request_to_another_machine_uses_the_proxy(monkeypatch):
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        response = send(make_request("http://receiver.invalid/hook", allow_http=True))

    assert (response.status, response.body) == (200, "ok")
    assert proxy.requests[0].path == "http://receiver.invalid/hook"


@pytest.mark.fault("D8", "D15")
def test_the_deadline_applies_through_a_proxy(monkeypatch):
    with Receiver(webhook_receiver.drip_header()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        with deadlines_from_silence(proxy):
            response = send(
                make_request("http://receiver.invalid/", allow_http=True), deadline=DEADLINE_SECONDS
            )
        wait_for_senders()

    assert response.error == "DeadlineExceededError"


@pytest.mark.fault("X1")
def test_no_credentials_of_netrc_are_sent(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine receiver.invalid login me password pw\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        send(make_request("http://receiver.invalid/hook", allow_http=True))

    assert "authorization" not in proxy.requests[0].headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(certificate):
    return server_context(certificate)


@pytest.mark.fault("D2")
def test_a_self_signed_certificate_is_refused(tls):
    with Receiver(tls=tls) as receiver:
        response = send(make_request(receiver.url))

    assert (response.error, receiver.requests) == ("SSLCertVerificationError", [])


@pytest.mark.fault("D17")
def test_a_handshake_that_the_receiver_breaks_off_is_an_error_of_the_connection(
    tls, certificate, monkeypatch
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(tls=tls, refused_handshakes=1) as receiver:
        errors = [send(make_request(receiver.url)).error for _ in range(2)]

    assert errors[0] in {"SSLEOFError", "SSLZeroReturnError", "ConnectionResetError"}
    assert (errors[1], len(receiver.accepted)) == ("", 1)


@pytest.mark.fault("D2")
def test_a_certificate_of_another_host_is_refused(tls, certificate, monkeypatch):
    """The certificate is trusted, and is that of an address, not of a name."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(tls=tls) as receiver:
        response = send(make_request(receiver.url.replace("127.0.0.1", "localhost")))

    assert (response.error, receiver.requests) == ("SSLCertVerificationError", [])


@pytest.mark.fault("D2")
def test_an_expired_certificate_is_refused(tmp_path, monkeypatch):
    expired = make_certificate(tmp_path, is_expired=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(expired))
    with Receiver(tls=server_context(expired)) as receiver:
        response = send(make_request(receiver.url))

    assert (response.error, receiver.requests) == ("SSLCertVerificationError", [])


@pytest.mark.fault("D2")
def test_an_old_version_of_tls_is_refused(certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    old = server_context(certificate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1
    with Receiver(tls=old) as receiver:
        response = send(make_request(receiver.url))

    assert response.error.startswith("SSL")
    assert receiver.requests == []


@pytest.mark.fault("D2")
def test_a_custom_certificate_authority_is_accepted(tls, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(tls=tls) as receiver:
        assert send(make_request(receiver.url)).status == 200


@pytest.mark.fault("D8")
@pytest.mark.parametrize(
    "mode", [webhook_receiver.hang, webhook_receiver.drip_header, webhook_receiver.drip_body]
)
def test_the_deadline_applies_over_tls(mode, tls, certificate, monkeypatch):
    """TLS replaces the socket object; aborting must still close the connection."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(mode(), tls=tls) as receiver, deadlines_from_silence(receiver):
        response = send(make_request(receiver.url), deadline=DEADLINE_SECONDS)
        wait_for_senders()

    assert (response.error, len(receiver.requests)) == ("DeadlineExceededError", 1)


class Peer:
    """A connection with a given peer address."""

    def __init__(self, address):
        self.address = address

    def getpeername(self):
        return (self.address, 80)


@pytest.mark.fault("X2")
def test_the_address_of_the_peer_is_checked():
    """A metadata service, or a "localhost" on another machine, is refused."""
    with pytest.raises(AddressRefusedError):
        check_peer_address(Peer("169.254.169.254"), "hooks.example.org", is_plaintext=False)
    with pytest.raises(AddressRefusedError):
        check_peer_address(Peer("10.0.0.1"), "localhost", is_plaintext=True)
    check_peer_address(Peer("10.0.0.1"), "hooks.example.org", is_plaintext=False)


@pytest.mark.fault("X2")
def test_nothing_is_sent_to_a_refused_peer(monkeypatch):
    """The check follows the connection and precedes the first byte."""
    monkeypatch.setattr(
        "sentinel.notify.transports.abortable_connection.peer_refusal",
        {"127.0.0.1": "is refused"}.get,
    )
    with Receiver() as receiver:
        response = send(make_request(receiver.url))

    assert (response.error, receiver.requests) == ("AddressRefusedError", [])


def test_a_connection_opened_after_the_deadline_is_not_used():
    """Otherwise a notification could be sent after it was counted as failed."""
    connections = AbortableConnections()
    connections.abort()
    with Receiver() as receiver:
        host, port = receiver.url.split("/")[2].split(":")
        connection = HTTPConnection(host, int(port))
        connection.connect()
        with pytest.raises(DeadlineExceededError):
            connections.add(connection.sock)
        connection.close()


@pytest.mark.fault("A23")
def test_without_a_thread_nothing_is_sent_and_it_is_no_rejection(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    with Receiver() as receiver, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        response = send(make_request(receiver.url), deadline=TIMEOUT_SECONDS)

    assert (response.error, response.is_sent) == ("ThreadLimitError", False)
    assert receiver.requests == []


@pytest.mark.fault("X1")
def test_http_libraries_log_no_url(caplog, capfd, monkeypatch):
    """Neither their loggers nor `debuglevel` of `http.client` expose it."""
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)
    caplog.set_level(logging.DEBUG)
    with Receiver() as receiver:
        send(make_request(receiver.url))
        send(make_request(receiver.url.replace("127.0.0.1", "localhost")))
    send(make_request(receiver.url))

    shown = capfd.readouterr()
    assert "services" not in caplog.text + shown.out + shown.err


def test_nothing_is_sent_if_it_is_not_wanted_once_the_receiver_is_reached():
    with Receiver() as receiver:
        response = send(make_request(receiver.url), is_wanted=lambda: False)

    assert (response.error, response.is_sent, receiver.requests) == ("PostponedError", False, [])


def test_a_receiver_that_is_not_reached_is_not_asked_about():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    asked = []

    response = send(make_request(url), is_wanted=lambda: bool(asked.append(1)))

    assert (response.error, response.is_sent, asked) == ("ConnectionRefusedError", False, [])
