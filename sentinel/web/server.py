"""Listens for the requests of a site, of an agent or of `sentinel serve`, in a thread of its own.

The HTTP server takes as long to import as the rest of a short command: it is imported at the first
connection, or a few seconds after the start.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING

from sentinel.config.url_policy import is_loopback

if TYPE_CHECKING:
    from sentinel.config.web_config import WebConfig, WebConfigFile
    from sentinel.web.http_server import HttpServer, Site

log = logging.getLogger(__name__)

IMPORT_AFTER_SECONDS = 10.0
"""Time after which the server is imported without a connection: packages may be replaced while a
run trains."""


@dataclass
class WebServer:
    """HTTP server of the site that `make_site` returns, in a daemon thread, which calls it.

    The port is `former_port` if that is given and free, else the first free one of `port_tries`
    from `port` on; port 0 lets the system choose, and so does `any_port` if none of them is free.
    `web_config_file` has the TLS settings and users, and `public_url` is the address of the page
    behind a proxy. `own_token` is that of `AuthMiddleware`. `loop_seconds` returns the seconds
    since the last turn of the main loop of the process, for probes. Raises ConfigError for an
    invalid web configuration, and ValueError if `host` is not a loopback address and clients would
    not have to authenticate.
    """

    make_site: Callable[[], Site]
    host: str = "127.0.0.1"
    port: int = 0
    port_tries: int = 100
    any_port: bool = False
    former_port: int = 0
    token: str = field(default="", repr=False)
    own_token: str = field(default="", repr=False)
    web_config_file: Path | None = None
    public_url: str = ""
    loop_seconds: Callable[[], float] = lambda: 0.0

    def __post_init__(self) -> None:
        must_authenticate = not is_loopback(self.host) and not self.token
        self.web_config_reader: WebConfigFile | None = None
        if self.web_config_file is not None:
            # Few servers have one.
            from sentinel.config.web_config import WebConfigFile  # noqa: PLC0415

            self.web_config_reader = WebConfigFile(
                self.web_config_file, must_authenticate=must_authenticate
            )
        config = self.web_config()
        if must_authenticate and not (config and config.authenticates):
            message = f"The web host {self.host!r} is reachable from other machines: "
            raise ValueError(
                f"{message}set a token or a web configuration, or listen on 127.0.0.1."
            )
        self._listening: socket.socket | None = None
        self._thread: Thread | None = None
        self._server: HttpServer | None = None
        self._is_stopped = Flag()

    def web_config(self) -> WebConfig | None:
        """The web configuration as last read; None without one."""
        return None if self.web_config_reader is None else self.web_config_reader.current

    @property
    def certificate_file(self) -> Path | None:
        """The certificate that clients get; None for plain HTTP."""
        config = self.web_config()
        return config.tls.cert_file if config is not None and config.tls is not None else None

    def start(self) -> int:
        """Listen, and return the port. Raises OSError if no port of the range is free."""
        self._listening = listening = self._bind()
        port: int = listening.getsockname()[1]
        self._thread = Thread(target=self._run, args=(listening,), name="sentinel-web", daemon=True)
        self._thread.start()
        return port

    def _run(self, listening: socket.socket) -> None:
        with listening:
            with selectors.DefaultSelector() as selector:
                selector.register(listening, selectors.EVENT_READ)
                selector.select(IMPORT_AFTER_SECONDS)
            if self._is_stopped.is_set():
                return
            try:
                # Many runs end without a connection.
                from sentinel.web.http_server import make_server  # noqa: PLC0415

                self._server = make_server(self)
            except Exception:
                # Such as an installation that is being replaced. The run is monitored all the same.
                log.exception("No page and no metrics are served: the server cannot start")
                return
            if not self._is_stopped.is_set():
                self._server.run([listening])

    def _bind(self) -> socket.socket:
        if self.former_port:
            with suppress(OSError):
                return bind_free_port(self.host, self.former_port, 1)
        try:
            return bind_free_port(self.host, self.port, self.port_tries)
        except OSError as error:
            if not self.any_port or error.errno != errno.EADDRINUSE:
                raise
            log.warning("%s: another port is used", error.strerror)
            return bind_free_port(self.host, 0, 1)

    def stop(self) -> None:
        """Close the connections and wait for the thread, for at most 5 seconds."""
        self._is_stopped.set()
        if self._server is not None:
            self._server.end()
        elif self._listening is not None:
            # It ends the wait for a connection.
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(timeout=5.0)


def bind_free_port(host: str, port: int, tries: int) -> socket.socket:
    """A socket that listens on the first free port of `tries` from `port` on.

    Raises OSError if none is free, and at once for any other error, such as a foreign address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + max(tries, 1), 65536)):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(1024)
        except OSError as error:
            listening.close()
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
        else:
            return listening
    raise OSError(errno.EADDRINUSE, f"No free port on {host} from {port} on ({tries} tried)")
