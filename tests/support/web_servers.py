"""Servers of the web page under test, on free ports, and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import requests
from prometheus_client import CollectorRegistry
from support.results import RUN

from sentinel.web.server import WebServer

PATIENCE = 60.0
"""Seconds: what a busy machine may take for what an idle one does at once."""


@contextmanager
def servers() -> Iterator[Callable[..., str]]:
    """Yields a function that starts a server and gives its address; all are stopped at the end."""
    started: list[WebServer] = []

    def start(**settings: Any) -> str:
        settings = {
            "registry": CollectorRegistry(),
            "state": lambda: {"run": RUN},
            "incidents": list,
        } | settings
        server = WebServer(**settings)
        started.append(server)
        return f"http://127.0.0.1:{server.start()}"

    yield start
    for server in started:
        server.stop()


def get(url: str, **headers: str) -> requests.Response:
    """GET with one connection per call, so that a stopped server has none left open."""
    return requests.get(url, headers={"connection": "close", **headers}, timeout=PATIENCE)
