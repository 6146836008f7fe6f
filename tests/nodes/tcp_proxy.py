"""A TCP proxy on loopback whose connections can be cut and restored, like a network link."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from select import select
from typing import Self

POLL_SECONDS = 0.02


class TcpProxy:
    """A context manager that listens at `port` and relays bytes to and from `target`.

    While it is cut it relays nothing, and connections stay open, as over a link that is down. What
    was sent meanwhile arrives once it is restored, as TCP retransmits it.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.is_connected, self.is_closed = threading.Event(), threading.Event()
        self.is_connected.set()
        self.byte_count = 0
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(POLL_SECONDS)
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed.set()
        for thread in self._threads:
            thread.join()
        self._server.close()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def cut(self) -> None:
        self.is_connected.clear()

    def restore(self) -> None:
        self.is_connected.set()

    def _start(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.is_closed.is_set():
            with suppress(TimeoutError):
                near, _ = self._server.accept()
                self._start(self._relay, near)

    def _relay(self, near: socket.socket) -> None:
        """Relay one connection in both directions until either end closes."""
        if not self._wait_until_connected():
            near.close()
            return
        try:
            far = socket.create_connection(self.target, timeout=5.0)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        closed = threading.Event()
        self._start(self._copy, near, far, closed)
        self._copy(far, near, closed)
        near.close()
        far.close()

    def _copy(self, source: socket.socket, sink: socket.socket, closed: threading.Event) -> None:
        with suppress(OSError):
            while self._wait_until_connected() and not closed.is_set():
                if not select([source], [], [], POLL_SECONDS)[0]:
                    continue
                data = source.recv(65536)
                if not data or not self._wait_until_connected():
                    break
                self.byte_count += len(data)
                sink.sendall(data)
        closed.set()

    def _wait_until_connected(self) -> bool:
        """Wait until it is not cut; False once it is closed."""
        while not self.is_closed.is_set():
            if self.is_connected.wait(POLL_SECONDS):
                return True
        return False
