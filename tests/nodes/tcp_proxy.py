"""Cable: a TCP connection's way on loopback, which can be cut and healed, as a network's can."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from select import select

POLL = 0.02


class Cable:
    """Context manager: listens at `port` and carries bytes to and from `target` while it is whole.

    Cut, it carries nothing and tells nobody: connections stay open, as over a link that is down.
    What was sent meanwhile arrives once it is whole again, as TCP would send it again.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.whole, self.over = threading.Event(), threading.Event()
        self.whole.set()
        self.carried = 0
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Cable:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(POLL)
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()
        self._server.close()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def cut(self) -> None:
        self.whole.clear()

    def heal(self) -> None:
        self.whole.set()

    def _start(self, work, *given) -> None:
        thread = threading.Thread(target=work, args=given)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.over.is_set():
            with suppress(TimeoutError):
                near, _ = self._server.accept()
                self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        """Both ways of one connection, until either end closes."""
        if not self._intact():
            near.close()
            return
        try:
            far = socket.create_connection(self.target, timeout=5.0)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        closed = threading.Event()
        self._start(self._carry, near, far, closed)
        self._carry(far, near, closed)
        near.close()
        far.close()

    def _carry(self, source: socket.socket, sink: socket.socket, closed: threading.Event) -> None:
        with suppress(OSError):
            while self._intact() and not closed.is_set():
                if not select([source], [], [], POLL)[0]:
                    continue
                data = source.recv(65536)
                if not data or not self._intact():
                    break
                self.carried += len(data)
                sink.sendall(data)
        closed.set()

    def _intact(self) -> bool:
        """Whether it is whole, waited for; false once the test is over."""
        while not self.over.is_set():
            if self.whole.wait(POLL):
                return True
        return False
