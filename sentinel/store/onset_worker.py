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
from sentinel.model.incident import Incident, Onset
from sentinel.model.notification import NotificationReason
from sentinel.pipeline.engine import Result
from sentinel.pipeline.incidents import MAX_CHECKPOINTS_PER_RUN
from sentinel.store.database import connect

log = logging.getLogger(__name__)

MAX_HISTORY_ROWS = 4096
"""Records of the history that are looked through for a signal, which not every one has."""
MAX_SIGNAL_POINTS = 256
"""Points of the signal that are looked at."""
INCIDENT_STORED_TIMEOUT_SECONDS = 10.0
"""Seconds until an incident that was not stored is given up."""
_INCIDENT_STORED_POLL_SECONDS = 0.05

SignalPoints = Sequence[tuple[int, float]]
OnsetEstimator = Callable[[Incident, SignalPoints, Iterable[int]], Onset | None]

_RECENT_VALUES_SQL = "select step, vals from step where time <= ? order by id desc limit ?"
_CHECKPOINT_STEPS_SQL = (
    "select step from step where event = 'save' and time <= ? order by id desc limit ?"
)


class OnsetWorker:
    """Dates what opens at warning or louder, in a thread that begins with the first of them.

    `date` finds out from an incident, the points of its signal and the checkpoints' steps when it
    began; `found` is told the name of an incident and its onset, by any thread.
    """

    def __init__(
        self,
        database_path: Path,
        estimate_onset: OnsetEstimator,
        on_onset: Callable[[str, Onset], None],
    ) -> None:
        self.database_path = database_path
        self._estimate_onset, self._on_onset = estimate_onset, on_onset
        self._queue: SimpleQueue[Incident | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def update(self, result: Result) -> None:
        """Ask for what opened. Never waits."""
        for page in result.notifications:
            if page.reason is not NotificationReason.RESOLVED:
                self._enqueue(page.incident)

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Show what the last agent found of these, and ask for what it did not come to."""
        with closing(connect(self.database_path)) as connection:
            known = load_onsets(connection)
        for incident in incidents:
            if incident.name in known:
                self._on_onset(incident.name, known[incident.name])
            else:
                self._enqueue(incident)

    def stop(self, timeout: float) -> None:
        """End the thread, waiting so many seconds for what is under way."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)

    def _enqueue(self, incident: Incident) -> None:
        if incident.severity is Severity.INFO:
            return
        self._queue.put(incident)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="dating", daemon=True)
            self._thread.start()

    def _run_thread(self) -> None:
        while (incident := self._queue.get()) is not None:
            try:
                self._find_onset(incident)
            except Exception:
                log.exception("Incident %s cannot be dated", incident.name)

    def _find_onset(self, incident: Incident) -> None:
        with closing(connect(self.database_path)) as connection:
            if incident.name in load_onsets(connection) or not _wait_until_stored(
                connection, incident
            ):
                return
            saves = connection.execute(
                _CHECKPOINT_STEPS_SQL, (incident.opened_time, MAX_CHECKPOINTS_PER_RUN)
            ).fetchall()
            onset = self._estimate_onset(
                incident, _load_signal_points(connection, incident), [s for (s,) in saves[::-1]]
            )
            if onset is None:
                return
            row = (incident.name, onset.step, onset.earliest, onset.latest, onset.last_good_step)
            connection.execute("insert or replace into onset values(?, ?, ?, ?, ?)", row)
        self._on_onset(incident.name, onset)


def load_onsets(connection: sqlite3.Connection) -> dict[str, Onset]:
    """What was found out, by the incident's name."""
    rows = connection.execute("select incident, step, earliest, latest, last_good from onset")
    return {name: Onset(*rest) for name, *rest in rows}


def _wait_until_stored(connection: sqlite3.Connection, incident: Incident) -> bool:
    """Wait for the transaction that stores the incident; whether it came."""
    limit = time.monotonic() + INCIDENT_STORED_TIMEOUT_SECONDS
    asked = "select 1 from incident where name = ?"
    while connection.execute(asked, [incident.name]).fetchone() is None:
        if time.monotonic() > limit:
            return False
        time.sleep(_INCIDENT_STORED_POLL_SECONDS)
    return True


def _load_signal_points(connection: sqlite3.Connection, incident: Incident) -> SignalPoints:
    points: list[tuple[int, float]] = []
    for step, values in connection.execute(
        _RECENT_VALUES_SQL, (incident.opened_time, MAX_HISTORY_ROWS)
    ):
        value = json.loads(values).get(incident.signal)
        if value is not None and len(points) < MAX_SIGNAL_POINTS:
            points.append((step, value))
    return points[::-1]
