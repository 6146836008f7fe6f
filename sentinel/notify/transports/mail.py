"""One e-mail over SMTP within a hard deadline, with a verified certificate.

The errors of `smtplib` quote addresses and responses, so they are reported by class name or reply
code. RFC 5321 (reply codes), RFC 8314 (TLS), read on 2026-11-23.
"""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from sentinel.config.url_policy import is_loopback
from sentinel.model.delivery import Mail, Response
from sentinel.notify.transports.abortable_connection import (
    CONNECT_SHARE,
    AbortableConnections,
    check_peer_address,
    exchange_within,
)
from sentinel.notify.transports.errors import AddressRefusedError

_READY, _ACCEPTED = 220, 250
_READ_TIMEOUT_MARGIN_SECONDS = 60.0
"""Seconds by which the timeout of one read exceeds the deadline."""


def send(mail: Mail, *, deadline: float, is_wanted: Callable[[], bool] = lambda: True) -> Response:
    """Send once and return the outcome, within `deadline` seconds. Never raises a network error.

    `is_wanted` is asked once the receiver is reached; if not, the error is PostponedError.
    The receiver accepted the mail if it accepted one of its recipients.
    """
    if mail.security == "none" and not is_loopback(mail.host):
        return Response(error=AddressRefusedError.__name__, protocol="SMTP")
    return exchange_within(deadline, lambda opened: _exchange(mail, opened, deadline), is_wanted)


def _exchange(mail: Mail, connections: AbortableConnections, deadline: float) -> Response:
    try:
        with _open(mail, connections, deadline) as client:
            if mail.security == "starttls":
                client.starttls(context=ssl.create_default_context())
            client.ehlo_or_helo_if_needed()
            if mail.username:
                client.login(mail.username, mail.password)
            client.sendmail(mail.sender, mail.recipients, mail.message)
            return Response(_ACCEPTED, protocol="SMTP")
    except smtplib.SMTPResponseException as error:
        return Response(error.smtp_code, protocol="SMTP")
    except smtplib.SMTPRecipientsRefused as error:
        # A temporary refusal of one recipient is worth another try.
        return Response(min(code for code, _ in error.recipients.values()), protocol="SMTP")


@contextlib.contextmanager
def _open(mail: Mail, connections: AbortableConnections, deadline: float) -> Iterator[_Client]:
    client = _Client(mail, connections, deadline)
    try:
        code, _ = client.connect(mail.host, mail.port)
        if code != _READY:
            raise smtplib.SMTPConnectError(code, "")
        yield client
    finally:
        # The response to QUIT is not awaited: the message is accepted or refused already.
        with contextlib.suppress(OSError):
            if client.sock is not None:
                client.sock.sendall(b"QUIT\r\n")
        client.close()


class _Client(smtplib.SMTP):
    """An SMTP client whose connection is checked, can be aborted, and is never printed."""

    debuglevel = 0

    def __init__(self, mail: Mail, connections: AbortableConnections, deadline: float) -> None:
        self._mail, self._connections = mail, connections
        self._connect_timeout = deadline * CONNECT_SHARE
        super().__init__(timeout=deadline + _READ_TIMEOUT_MARGIN_SECONDS)
        # `starttls` verifies the certificate against this name.
        self._host = mail.host

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        opened = socket.create_connection((host, port), self._connect_timeout)
        try:
            opened.settimeout(timeout)
            check_peer_address(opened, host, is_plaintext=self._mail.security == "none")
            self._connections.add(opened)
            if self._mail.security == "tls":
                return ssl.create_default_context().wrap_socket(opened, server_hostname=host)
        except OSError:
            opened.close()
            raise
        return opened

    def _print_debug(self, *_: Any) -> None:
        """Print nothing: the lines hold the password."""
