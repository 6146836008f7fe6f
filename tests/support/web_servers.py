"""Web servers on free ports, and requests to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import requests
from prometheus_client import CollectorRegistry
from support.results import RUN

from sentinel.web.server import WebServer

TIMEOUT_SECONDS = 60.0
"""Timeout in seconds of what takes milliseconds on an idle machine."""


@contextmanager
def servers() -> Iterator[Callable[..., str]]:
    """Yields a function that starts a server and returns its URL; stops all servers at the end."""
    started: list[WebServer] = []

    def start(**arguments: Any) -> str:
        arguments = {
            "registry": CollectorRegistry(),
            "state": lambda: {"run": RUN},
            "incidents": list,
        } | arguments
        server = WebServer(**arguments)
        started.append(server)
        scheme = "https" if server.certificate_file else "http"
        return f"{scheme}://127.0.0.1:{server.start()}"

    yield start
    for server in started:
        server.stop()


def get(url: str, **headers: str) -> requests.Response:
    """GET on a connection of its own, so that a stopped server has none left open."""
    return requests.get(url, headers={"connection": "close", **headers}, timeout=TIMEOUT_SECONDS)
