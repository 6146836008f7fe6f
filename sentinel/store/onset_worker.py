"""Estimates the onset of each open incident in a background thread.

Once an incident is stored, the thread reads the recent values of its signal from the history, and
stores and reports the onset. Neither the agent's loop nor a notification waits for it.
"""

from __future__ import annotations

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
from sentinel.store.history import History, load_onsets
from sentinel.store.storage_monitor import reading_storage

log = logging.getLogger(__name__)

MAX_HISTORY_ROWS = 4096
"""Records of the history that are searched for values of the signal."""
MAX_SIGNAL_POINTS = 256
"""Values of the signal that are used."""
INCIDENT_STORED_TIMEOUT_SECONDS = 10.0
"""Seconds after which an incident that is not stored is skipped."""
_INCIDENT_STORED_POLL_SECONDS = 0.05

SignalPoints = Sequence[tuple[int, float]]
OnsetEstimator = Callable[[Incident, SignalPoints, Iterable[int]], Onset | None]

_CHECKPOINT_STEPS_SQL = """
select step from step where event <> 'step' and event = 'save' and time <= ?
order by id desc limit ?
"""


class OnsetWorker:
    """Estimates onsets of incidents at warning or critical; the first one starts the thread.

    `estimate_onset` takes an incident, the values of its signal and the steps of checkpoints;
    `cancel` makes it return soon. `on_onset` receives the name of an incident and its onset, from
    any thread, and `on_database_error` the errors of the database.
    """

    def __init__(
        self,
        database_path: Path,
        estimate_onset: OnsetEstimator,
        on_onset: Callable[[str, Onset], None],
        on_database_error: Callable[[Exception], None] = lambda _: None,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self.database_path, self._on_database_error = database_path, on_database_error
        self._cancel = cancel
        self._estimate_onset, self._on_onset = estimate_onset, on_onset
        self._queue: SimpleQueue[Incident | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_cancelled = False

    def update(self, result: Result) -> None:
        """Queue the incidents that opened or worsened. Never blocks."""
        for notification in result.notifications:
            if notification.reason is not NotificationReason.RESOLVED:
                self._enqueue(notification.incident)

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Report the stored onsets of these incidents, and queue the incidents without one."""
        with closing(connect(self.database_path)) as connection:
            onsets = load_onsets(connection)
        for incident in incidents:
            if incident.name in onsets:
                self._on_onset(incident.name, onsets[incident.name])
            else:
                self._enqueue(incident)

    def stop(self, timeout: float) -> None:
        """Stop the thread; wait up to `timeout` seconds for the estimates that are queued.

        After that no estimate begins: the next agent may use another file, and finds the incidents
        without an onset again.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._is_cancelled = True
                self._cancel()

    def _enqueue(self, incident: Incident) -> None:
        if incident.severity is Severity.INFO:
            return
        self._queue.put(incident)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_thread, name="onset-worker", daemon=True
            )
            self._thread.start()

    def _run_thread(self) -> None:
        while (incident := self._queue.get()) is not None and not self._is_cancelled:
            try:
                self._find_onset(incident)
            except Exception as error:
                if self._is_cancelled:
                    return
                self._on_database_error(error)
                log.exception("The onset of %s cannot be estimated", incident.name)

    def _find_onset(self, incident: Incident) -> None:
        with closing(connect(self.database_path)) as connection:
            if incident.name in load_onsets(connection) or not _wait_until_stored(
                connection, incident
            ):
                return
            saves = connection.execute(
                _CHECKPOINT_STEPS_SQL, (incident.opened_time, MAX_CHECKPOINTS_PER_RUN)
            ).fetchall()
            with reading_storage():
                points = History(connection).recent_values(
                    incident.signal, incident.opened_time, MAX_HISTORY_ROWS, MAX_SIGNAL_POINTS
                )
            onset = self._estimate_onset(incident, points, [step for (step,) in saves[::-1]])
            if onset is None:
                return
            store_onset(connection, incident.name, onset)
        self._on_onset(incident.name, onset)


def store_onset(connection: sqlite3.Connection, incident: str, onset: Onset) -> None:
    """Store the onset of the incident of that name."""
    row = (incident, onset.step, onset.earliest, onset.latest, onset.last_good_step)
    connection.execute("insert or replace into onset values(?, ?, ?, ?, ?)", row)


def _wait_until_stored(connection: sqlite3.Connection, incident: Incident) -> bool:
    """Wait for the transaction that stores the incident; return whether it committed in time."""
    deadline = time.monotonic() + INCIDENT_STORED_TIMEOUT_SECONDS
    query = "select 1 from incident where name = ?"
    while connection.execute(query, [incident.name]).fetchone() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_INCIDENT_STORED_POLL_SECONDS)
    return True
