"""Server-sent events of a run, read as a browser reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
from support.web_servers import TIMEOUT_SECONDS


@dataclass(frozen=True)
class Event:
    """One event; `number` is its id, empty if it has none."""

    name: str
    data: Any
    number: str = ""


@contextmanager
def event_stream(url: str, **headers: str) -> Iterator[Iterator[Event]]:
    """The events of the stream at `url`, which is closed at the end."""
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream"
        yield _events(answer.iter_lines(chunk_size=1, decode_unicode=True))


def next_event(events: Iterator[Event], name: str) -> Event:
    """The next event of that name."""
    return next(event for event in events if event.name == name)


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(": ")
        if line:
            fields[key] = value
        elif "event" in fields:
            yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            fields = {}
        else:
            fields = {}
