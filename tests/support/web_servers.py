"""Web servers on free ports, and requests to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import requests
from prometheus_client import CollectorRegistry
from support.results import RUN

from sentinel.web.agent_site import AgentSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer
from sentinel.web.suppression_api import SuppressionApi

TIMEOUT_SECONDS = 240.0
"""Timeout in seconds of what takes milliseconds on an idle machine."""


class StubReader:
    """A reader of a run of which nothing is stored but what is given."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        empty = {
            "rows_since": {"last_id": 0},
            "last_row": 0,
            "series": {"series": {}, "last_id": 0},
            "timeline": {"detectors": [], "events": []},
            "media_body": ("image/png", b""),
            "rank_grid": {"signal": "", "signals": [], "ranks": [], "x": [], "values": []},
            "thresholds": {},
        }
        return self._answers.get(name, lambda *_, **__: empty.get(name, []))


def make_site(
    state: Callable[[], dict[str, Any]] = lambda: {"run": RUN},
    incidents: Callable[[], list[Any]] = list,
    samples: Callable[..., list[Any]] = lambda *_: [],
    registry: CollectorRegistry | None = None,
    suppression: SuppressionApi | None = None,
    **answers: Callable[..., Any],
) -> AgentSite:
    """The site of an agent of run `RUN` whose reader gives these answers."""
    reader = StubReader(incidents=incidents, samples=samples, **answers)
    view = RunView(RUN, reader, state, Path("/nowhere"), suppression)
    return AgentSite(CollectorRegistry() if registry is None else registry, view)


@contextmanager
def servers() -> Iterator[Callable[..., str]]:
    """Yields a function that starts a server and returns its URL; stops all servers at the end."""
    started: list[WebServer] = []

    def start(**arguments: Any) -> str:
        options = {field.name for field in fields(WebServer)}
        given = {name: arguments.pop(name) for name in options & arguments.keys()}
        server = WebServer(lambda: make_site(**arguments), **given)
        started.append(server)
        scheme = "https" if server.certificate_file else "http"
        return f"{scheme}://127.0.0.1:{server.start()}"

    yield start
    for server in started:
        server.stop()


def get(url: str, **headers: str) -> requests.Response:
    """GET on a connection of its own, so that a stopped server has none left open."""
    return requests.get(url, headers={"connection": "close", **headers}, timeout=TIMEOUT_SECONDS)
