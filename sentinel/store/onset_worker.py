"""Dating: when each open incident began, found out beside the agent's loop, which never waits.

The recent past of the incident's signal is read from the history once the incident is stored there;
what is found is stored beside it and shown. Pages do not wait for it either.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from sentinel.model.finding import Severity
from sentinel.model.incident import SAVES_KEPT, Incident, Onset, Reason
from sentinel.pipeline.engine import Verdict
from sentinel.store.database import connect

log = logging.getLogger(__name__)

MOST_ROWS = 4096
"""Records of the history that are looked through for a signal, which not every one has."""
POINTS = 256
"""Points of the signal that are looked at."""
PATIENCE = 10.0
"""Seconds until an incident that was not stored is given up."""
_PAUSE = 0.05

Points = Sequence[tuple[int, float]]
Date = Callable[[Incident, Points, Iterable[int]], Onset | None]

_ROWS = "select step, vals from step where time <= ? order by id desc limit ?"
_SAVES = "select step from step where event = 'save' and time <= ? order by id desc limit ?"


class Dating:
    """Dates what opens at warning or louder, in a thread that begins with the first of them.

    `date` finds out from an incident, the points of its signal and the checkpoints' steps when it
    began; `found` is told the name of an incident and its onset, by any thread.
    """

    def __init__(self, path: Path, date: Date, found: Callable[[str, Onset], None]) -> None:
        self.path = path
        self._date, self._found = date, found
        self._asked: SimpleQueue[Incident | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, verdict: Verdict) -> None:
        """Ask for what opened. Never waits."""
        for page in verdict.pages:
            if page.reason is not Reason.RESOLVED:
                self._ask(page.incident)

    def resume(self, firing: Iterable[Incident]) -> None:
        """Show what the last agent found of these, and ask for what it did not come to."""
        with closing(connect(self.path)) as connection:
            known = onsets(connection)
        for incident in firing:
            if incident.name in known:
                self._found(incident.name, known[incident.name])
            else:
                self._ask(incident)

    def stop(self, timeout: float) -> None:
        """End the thread, waiting so many seconds for what is under way."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(timeout)

    def _ask(self, incident: Incident) -> None:
        if incident.severity is Severity.INFO:
            return
        self._asked.put(incident)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dating", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (incident := self._asked.get()) is not None:
            try:
                self._look_back(incident)
            except Exception:
                log.exception("Incident %s cannot be dated", incident.name)

    def _look_back(self, incident: Incident) -> None:
        with closing(connect(self.path)) as connection:
            if incident.name in onsets(connection) or not _stored(connection, incident):
                return
            saves = connection.execute(_SAVES, (incident.opened_time, SAVES_KEPT)).fetchall()
            onset = self._date(incident, _points(connection, incident), [s for (s,) in saves[::-1]])
            if onset is None:
                return
            row = (incident.name, onset.step, onset.earliest, onset.latest, onset.last_good_step)
            connection.execute("insert or replace into onset values(?, ?, ?, ?, ?)", row)
        self._found(incident.name, onset)


def onsets(connection: sqlite3.Connection) -> dict[str, Onset]:
    """What was found out, by the incident's name."""
    rows = connection.execute("select incident, step, earliest, latest, last_good from onset")
    return {name: Onset(*rest) for name, *rest in rows}


def _stored(connection: sqlite3.Connection, incident: Incident) -> bool:
    """Wait for the transaction that stores the incident; whether it came."""
    limit = time.monotonic() + PATIENCE
    asked = "select 1 from incident where name = ?"
    while connection.execute(asked, [incident.name]).fetchone() is None:
        if time.monotonic() > limit:
            return False
        time.sleep(_PAUSE)
    return True


def _points(connection: sqlite3.Connection, incident: Incident) -> Points:
    points: list[tuple[int, float]] = []
    for step, values in connection.execute(_ROWS, (incident.opened_time, MOST_ROWS)):
        value = json.loads(values).get(incident.signal)
        if value is not None and len(points) < POINTS:
            points.append((step, value))
    return points[::-1]
