"""Pings a check such as one of healthchecks.io, which alerts when the pings stop.

`URL/start` at the start of the run, `URL` every minute while no critical case is open and the agent
works, and once more when the run ends well and none is open; `URL/fail` when a case becomes
critical and when the run ends otherwise.
Source: healthchecks.io, Pinging API (HTTP), read on 2026-11-23.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from sentinel.model.delivery import HttpRequest
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.notify.transports.send import load_transports, send
from sentinel.pipeline.engine import Result

log = logging.getLogger(__name__)

SUCCESS, START, FAIL = "", "start", "fail"
GOOD_OUTCOMES = frozenset({"finished", "interrupted"})
"""Outcomes of a run that cause no alert."""

_MAX_WAITING = 8
_HUNG_AGENT_SECONDS = 60.0
"""Time without an iteration of the agent after which it no longer counts as working."""


@dataclass(frozen=True)
class PingTiming:
    """Intervals in seconds."""

    interval: float = 60.0
    retry: float = 10.0
    deadline: float = 10.0


class HealthPing:
    """Pings `url` from a thread of its own; no other method waits or raises a network error."""

    def __init__(self, url: SecretStr, timing: PingTiming | None = None) -> None:
        load_transports()
        self._url = url
        self._timing = timing or PingTiming()
        self._lock = threading.Condition()
        self._waiting: deque[str] = deque()
        self._is_running = self._is_stopping = False
        self._open_critical: set[str] = set()
        self._agent_time = time.monotonic()
        self._thread = threading.Thread(target=self._ping_until_stopped, name="ping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def restore(self, open_cases: Iterable[Notification], *, is_running: bool) -> None:
        """Continue what an earlier agent of the run did."""
        self._is_running = is_running
        self._open_critical = {
            each.incident.name for each in open_cases if each.incident.severity is Severity.CRITICAL
        }

    def update(self, result: Result) -> None:
        """Queue the pings that follow from a result."""
        record = result.record
        pings = []
        if record.rank == WHOLE_RUN and record.event is Event.START:
            self._is_running = True
            pings.append(START)
        for notification in result.case_notifications:
            pings += self._update_case(notification)
        if record.rank == WHOLE_RUN and record.event is Event.STOP:
            self._is_running = False
            is_good = record.attributes.get("outcome") in GOOD_OUTCOMES
            pings.append(SUCCESS if is_good and not self._open_critical else FAIL)
        if pings:
            with self._lock:
                self._waiting += pings
                while len(self._waiting) > _MAX_WAITING:
                    self._waiting.popleft()
                self._lock.notify()

    def _update_case(self, notification: Notification) -> list[str]:
        name = notification.incident.name
        if notification.reason is NotificationReason.RESOLVED:
            self._open_critical.discard(name)
        elif (
            notification.incident.severity is Severity.CRITICAL and name not in self._open_critical
        ):
            self._open_critical.add(name)
            return [FAIL]
        return []

    def confirm_agent(self) -> None:
        """Record that the agent works; called in each iteration of its loop."""
        self._agent_time = time.monotonic()

    def stop(self, timeout: float = 5.0) -> None:
        """Send what is queued, and end the thread within `timeout` seconds."""
        with self._lock:
            self._is_stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _ping_until_stopped(self) -> None:
        delay = self._timing.interval
        while True:
            with self._lock:
                if not self._waiting and not self._is_stopping:
                    self._lock.wait(delay)
                if not self._waiting and self._is_stopping:
                    return
                ping = self._waiting.popleft() if self._waiting else self._regular_ping()
            delay = self._timing.interval
            if ping is None or self._send(ping):
                continue
            delay = self._timing.retry
            with self._lock:
                if self._is_stopping:
                    return
                self._waiting.appendleft(ping)
                self._lock.wait(delay)

    def _regular_ping(self) -> str | None:
        is_agent_working = time.monotonic() - self._agent_time < _HUNG_AGENT_SECONDS
        is_healthy = self._is_running and not self._open_critical and is_agent_working
        return SUCCESS if is_healthy else None

    def _send(self, ping: str) -> bool:
        url = ping_url(self._url.get_secret_value(), ping)
        response = send(HttpRequest(url), deadline=self._timing.deadline)
        if response.error or not 200 <= response.status < 300:
            log.warning("The ping %r was not accepted (%s)", ping or "success", response)
            return False
        return True


def ping_url(url: str, ping: str) -> str:
    """The URL of a ping.

    >>> ping_url("https://hc-ping.com/1234/?create=1", "start")
    'https://hc-ping.com/1234/start?create=1'
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"/{ping}" if ping else "")
    return urlunsplit(parts._replace(path=path))
