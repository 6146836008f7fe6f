"""E-mail over real sockets: deadline, verified TLS, reply codes, and no secret in any output."""

import smtplib
import time

import pytest
from support.certificates import make_certificate, server_context
from support.mail_receiver import MailReceiver
from support.webhook_receiver import deadlines_from_silence

from sentinel.model.delivery import Mail, Rejection
from sentinel.notify import retry
from sentinel.notify.transports.send import send

DEADLINE_SECONDS = 0.3
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificate, monkeypatch):
    """The certificate, which the client trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return server_context(certificate)


def mail(receiver, *, security="none", **settings):
    return Mail(
        "127.0.0.1",
        receiver.port,
        "sentinel@example.org",
        ("oncall@example.org", "second@example.org"),
        b"Subject: A title\r\n\r\nA body\r\n.\r\n",
        security,
        **settings,
    )


def test_a_mail_arrives():
    with MailReceiver() as receiver:
        response = send(mail(receiver))

    assert f"{response}" == "SMTP 250"
    assert receiver.mails == ["Subject: A title\r\n\r\nA body\r\n..\r\n"]
    assert "rcpt TO:<second@example.org>" in receiver.commands


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_mail_is_encrypted_before_the_login(security, trusted):
    with MailReceiver(tls=trusted, implicit_tls=security == "tls") as receiver:
        response = send(mail(receiver, security=security, username="me", password="CANARY"))

    assert response.status == 250
    assert len(receiver.mails) == 1
    assert any(command.startswith("AUTH") for command in receiver.commands)


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_certificate_that_cannot_be_verified_is_refused(security, certificate):
    tls = server_context(certificate)
    with MailReceiver(tls=tls, implicit_tls=security == "tls") as receiver:
        response = send(mail(receiver, security=security))

    assert response.error == "SSLCertVerificationError"
    assert receiver.mails == []


def test_a_server_without_starttls_gets_nothing():
    with MailReceiver() as receiver:
        response = send(mail(receiver, username="me", password="CANARY"))
        refused = send(mail(receiver, security="starttls", username="me", password="CANARY"))

    assert response.status == 250
    assert refused.error == "SMTPNotSupportedError"
    assert len(receiver.mails) == 1


def test_another_machine_gets_nothing_without_encryption():
    response = send(Mail("192.0.2.1", 25, "a@b.c", ("a@b.c",), b"", "none"))

    assert response.error == "AddressRefusedError"


@pytest.mark.parametrize(
    ("command", "reply", "rejection"),
    [
        ("CONNECT", "421 busy", Rejection.TEMPORARY),
        ("CONNECT", "554 no", Rejection.PERMANENT),
        ("AUTH", "535 wrong password", Rejection.PERMANENT),
        ("MAIL", "451 later", Rejection.TEMPORARY),
        ("RCPT", "450 greylisted", Rejection.TEMPORARY),
        ("RCPT", "550 unknown", Rejection.PERMANENT),
        (".", "552 too large", Rejection.TOO_LONG),
        (".", "452 full", Rejection.TEMPORARY),
    ],
)
def test_a_refusal_is_reported_by_its_reply_code(command, reply, rejection):
    with MailReceiver({command: reply}) as receiver:
        response = send(mail(receiver, username="me", password="secret"))

    assert f"{response}" == f"SMTP {reply[:3]}"
    assert retry.rejection(response) is rejection
    assert receiver.mails == []


@pytest.mark.parametrize("command", ["CONNECT", "EHLO", "DATA", "."])
def test_the_deadline_bounds_the_whole_exchange(command):
    started = time.monotonic()
    with MailReceiver({command: ""}) as receiver, deadlines_from_silence(receiver):
        response = send(mail(receiver), deadline=DEADLINE_SECONDS)
        elapsed = time.monotonic() - started

    assert response.error == "DeadlineExceededError"
    assert DEADLINE_SECONDS <= elapsed < TIMEOUT_SECONDS


def test_a_server_that_does_not_respond_to_quit_delays_nothing():
    with MailReceiver({"QUIT": ""}) as receiver:
        assert send(mail(receiver), deadline=TIMEOUT_SECONDS).status == 250


def test_no_secret_is_printed(capfd, caplog, monkeypatch):
    monkeypatch.setattr(smtplib.SMTP, "debuglevel", 2)
    with MailReceiver({"AUTH": "535 CANARY"}) as receiver:
        call = mail(receiver, username="CANARY", password="CANARY")
        response = send(call)

    shown = capfd.readouterr()
    assert "CANARY" not in f"{call!r} {response!r} {shown.out} {shown.err} {caplog.text}"
    assert "example.org" not in repr(call)
