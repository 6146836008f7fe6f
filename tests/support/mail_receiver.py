"""A local SMTP server that can fail in many ways and stores the mails that it accepts."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from dataclasses import dataclass, field


@dataclass
class MailReceiver:
    """Context manager that serves on a free local port.

    `replies` gives the reply to a command, by its first word in upper case, instead of acceptance.
    An empty reply to a command is silence until the end. `tls` is the context of a server that
    offers STARTTLS, or that expects TLS at once if `implicit_tls`.
    """

    replies: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    implicit_tls: bool = False
    mails: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def __enter__(self):
        self.closing = threading.Event()
        self.silences = threading.Semaphore(0)
        receiver = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self):
                with contextlib.ExitStack() as opened:
                    receiver._serve(self.connection, opened)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_):
                """Ignore clients that close the connection."""

        self._server = Server(("127.0.0.1", 0), Session)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self):
        return self._server.server_address[1]

    def _serve(self, connection, opened):
        def encrypt():
            return opened.enter_context(self.tls.wrap_socket(connection, server_side=True))

        if self.implicit_tls:
            connection = encrypt()
        lines = connection.makefile("rb")
        self._reply(connection, "CONNECT", "220 ready")
        while line := lines.readline().decode().strip():
            self.commands.append(line)
            command = line.split()[0].upper()
            if command == "EHLO":
                offers = ["250-STARTTLS"] if self.tls and not self.implicit_tls else []
                self._reply(
                    connection, command, "\r\n".join(["250-receiver", *offers, "250 AUTH PLAIN"])
                )
            elif command == "STARTTLS":
                self._reply(connection, command, "220 go on")
                connection = encrypt()
                lines = connection.makefile("rb")
            elif command == "AUTH":
                self._reply(connection, command, "235 welcome")
            elif command == "DATA":
                self._reply(connection, command, "354 go on")
                mail = _read_mail(lines)
                if mail is None:
                    return
                if not self.replies.get("."):
                    self.mails.append(mail)
                self._reply(connection, ".", "250 accepted")
            else:
                self._reply(connection, command, "250 ok")

    def _reply(self, connection, command, default):
        reply = self.replies.get(command, default)
        if not reply:
            self.silences.release()
            self.closing.wait(200.0)
        connection.sendall(f"{reply}\r\n".encode())


def _read_mail(lines):
    """The text up to the final dot; None if the connection ends before it."""
    read = []
    while (line := lines.readline()) != b".\r\n":
        if not line:
            return None
        read.append(line)
    return b"".join(read).decode()
