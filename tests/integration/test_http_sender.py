"""Sender: whatever the receiver does, an answer comes in time, and the address stays secret."""

import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.client import HTTPConnection

import pytest
from support import webhook_receiver
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.model.request import Request
from sentinel.notify.bounded_connection import (
    AbortableConnections,
    AddressRefusedError,
    DeadlineExceededError,
    _check_peer_address,
)
from sentinel.notify.http import MAX_RESPONSE_BYTES, send

DEADLINE = 0.3
PATIENCE = 60.0
"""Seconds: what a busy machine may take, and less than the receiver would hang."""


def post(url):
    return Request(url, b'{"a": 1}', {"Content-Type": "application/json"})


def wait_for_senders():
    """Deadline-poll until no sending thread is left, so that a test leaves nothing behind."""
    limit = time.monotonic() + PATIENCE
    while any(thread.name == "sentinel-send" for thread in threading.enumerate()):
        assert time.monotonic() < limit, "a sending thread outlived its request"
        time.sleep(0.01)


def test_says_what_the_receiver_answered():
    with Receiver(webhook_receiver.status(429, b"slow down", Retry_After="3")) as there:
        answer = send(post(there.url))

    assert (answer.status, answer.body, answer.retry_after, answer.error) == (
        429,
        "slow down",
        3.0,
        "",
    )
    assert there.requests[0].body == b'{"a": 1}'
    assert there.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "mode", [webhook_receiver.hang, webhook_receiver.drip_header, webhook_receiver.drip_body]
)
def test_the_deadline_holds_over_the_whole_exchange(mode):
    """One byte per 50 ms resets a timeout of the socket for ever; ours ends, and is no success."""
    started = time.monotonic()
    with Receiver(mode()) as there, deadlines_from_silence(there):
        answer = send(post(there.url), deadline=DEADLINE)
        took = time.monotonic() - started
        wait_for_senders()

    assert (answer.status, answer.error) == (0, "DeadlineError")
    assert DEADLINE <= took < PATIENCE < webhook_receiver.LONGEST_HANG


def test_reads_no_more_than_the_cap():
    with Receiver(webhook_receiver.endless()) as there:
        answer = send(post(there.url))
        wait_for_senders()

    assert (answer.status, len(answer.body)) == (200, MAX_RESPONSE_BYTES)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_follows_no_redirect(code):
    with Receiver() as elsewhere, Receiver(webhook_receiver.redirect(elsewhere.url, code)) as there:
        answer = send(post(there.url))

    assert answer.status == code
    assert elsewhere.requests == []


def test_reads_no_more_of_a_redirect_either():
    """Not even when the body of the redirect has no end."""
    with Receiver(webhook_receiver.endless(302, Location="http://127.0.0.1:9/")) as there:
        answer = send(post(there.url), deadline=PATIENCE)
        wait_for_senders()

    assert (answer.status, len(answer.body)) == (302, MAX_RESPONSE_BYTES)


@pytest.mark.parametrize("mode", [webhook_receiver.not_http, webhook_receiver.hang_up])
def test_broken_answers_are_errors_without_words(mode):
    with Receiver(mode()) as there:
        answer = send(post(there.url))

    assert answer.status == 0
    assert answer.error.isidentifier()


def test_a_receiver_that_is_not_there_is_told_by_class_alone():
    with Receiver() as there:
        url = there.url
    answer = send(post(url))

    assert answer.error == "ConnectionRefusedError"
    assert "services" not in repr(answer)


def test_a_name_that_means_nothing_is_told_by_class_alone(monkeypatch):
    """Without asking a name server, which may take as long as it likes."""

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert send(post("https://receiver.invalid/services/X")).error == "gaierror"


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "https://user:pw@example.org/", "nonsense"]
)
def test_refuses_unsafe_addresses_before_asking_for_their_name(url):
    assert send(post(url)).error == "AddressRefusedError"


def test_sends_to_this_machine_past_any_proxy(monkeypatch):
    """What is meant for this machine must not be shown to a proxy."""
    with Receiver() as there, Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert send(post(there.url)).status == 200
        assert proxy.requests == []


def test_sends_to_others_through_the_proxy(monkeypatch):
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        answer = send(post("http://receiver.invalid/hook"), allow_http=True)

    assert (answer.status, answer.body) == (200, "ok")
    assert proxy.requests[0].path == "http://receiver.invalid/hook"


def test_the_deadline_holds_through_a_proxy(monkeypatch):
    with Receiver(webhook_receiver.drip_header()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        with deadlines_from_silence(proxy):
            answer = send(post("http://receiver.invalid/"), allow_http=True, deadline=DEADLINE)
        wait_for_senders()

    assert answer.error == "DeadlineError"


def test_adds_no_credentials_of_the_home_directory(monkeypatch, tmp_path):
    """A password for the receiver's host in ~/.netrc is none of ours to send."""
    (tmp_path / "netrc").write_text("machine receiver.invalid login me password pw\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        send(post("http://receiver.invalid/hook"), allow_http=True)

    assert "authorization" not in proxy.requests[0].headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of this machine that only who asks for it trusts, with its key in one file."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", path, "-out", path.with_suffix(".crt")),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_nobody_vouches_for_is_refused(tls):
    with Receiver(tls=tls) as there:
        answer = send(post(there.url))

    assert (answer.error, there.requests) == ("SSLCertVerificationError", [])


def test_a_certificate_authority_of_the_house_can_be_named(tls, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(tls=tls) as there:
        assert send(post(there.url)).status == 200


@pytest.mark.parametrize(
    "mode", [webhook_receiver.hang, webhook_receiver.drip_header, webhook_receiver.drip_body]
)
def test_the_deadline_holds_over_tls(mode, tls, certificate, monkeypatch):
    """TLS takes the socket over; the leash must still reach it."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(mode(), tls=tls) as there, deadlines_from_silence(there):
        answer = send(post(there.url), deadline=DEADLINE)
        wait_for_senders()

    assert (answer.error, len(there.requests)) == ("DeadlineError", 1)


class Peer:
    """A connection that claims to have reached some address."""

    def __init__(self, address):
        self.address = address

    def getpeername(self):
        return (self.address, 80)


def test_the_address_really_reached_decides():
    """A name that led to a metadata service, or "localhost" that is elsewhere, is not spoken to."""
    with pytest.raises(AddressRefusedError):
        _check_peer_address(Peer("169.254.169.254"), "hooks.example.org", is_plaintext=False)
    with pytest.raises(AddressRefusedError):
        _check_peer_address(Peer("10.0.0.1"), "localhost", is_plaintext=True)
    _check_peer_address(Peer("10.0.0.1"), "hooks.example.org", is_plaintext=False)


def test_nothing_is_said_to_a_peer_that_is_refused(monkeypatch):
    """The check comes after the connection and before the first byte."""
    monkeypatch.setattr(
        "sentinel.notify.bounded_connection.peer_refusal", {"127.0.0.1": "is refused"}.get
    )
    with Receiver() as there:
        answer = send(post(there.url))

    assert (answer.error, there.requests) == ("AddressRefusedError", [])


def test_a_connection_made_after_the_deadline_is_not_used():
    """Else a slow name server would let a page out that was already counted as not sent."""
    leash = AbortableConnections()
    leash.abort()
    with Receiver() as there:
        host, port = there.url.split("/")[2].split(":")
        connection = HTTPConnection(host, int(port))
        connection.connect()
        with pytest.raises(DeadlineExceededError):
            leash.add(connection.sock)
        connection.close()


def test_http_libraries_log_nothing_of_ours(caplog, capfd, monkeypatch):
    """Neither their loggers nor http.client's own switch say where a page went."""
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)
    caplog.set_level(logging.DEBUG)
    with Receiver() as there:
        send(post(there.url))
        send(post(there.url.replace("127.0.0.1", "localhost")))
    send(post(there.url))

    shown = capfd.readouterr()
    assert "services" not in caplog.text + shown.out + shown.err
