"""The runs of the home directory, live and past, for `sentinel serve`."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic
from typing import Any

from sentinel.metrics.cluster_status import head_address
from sentinel.metrics.stored_state import stored_state, stored_summary
from sentinel.store.database import change_mark
from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import RunIndex
from sentinel.store.stored_runs import run_database
from sentinel.transport.paths import DATABASE_NAME
from sentinel.web.home.listed_settings import ListedSettings, describe_settings
from sentinel.web.home.run_list import ListAge, RunQuery, filter_runs, query_runs
from sentinel.web.run_routes import RunView
from sentinel.web.suppression_api import SuppressionApi

log = logging.getLogger(__name__)

MAX_VIEWS = 8
"""Runs whose reader stays in memory: those that were viewed last, and all that are viewed."""
REFRESH_SECONDS = 1.0
"""The list is not read more often."""
OUTDATED_SECONDS = 5.0
"""Age of a list that no page asked for meanwhile: it is read before it is shown."""
MAX_LIST_WAIT_SECONDS = 0.3
"""Longest wait for the list; a home directory that takes longer is shown as it was."""
SILENT_AGENT_SECONDS = 1.0
SILENT_AGENT_SHARE = 10.0
"""Pause after an agent did not answer, in seconds and in times of the wait for it.

A new one that is about to listen refuses at once, one that hangs takes the longest wait.
"""

AskAgent = Callable[[Path], dict[str, Any] | None]
"""The answer of `/api/run` of the agent that is registered in a directory.

Empty if there is none, and None if it does not answer.
"""


class HomeRuns:
    """The list of runs, read in a thread, and the views of those that are looked at.

    `ask_agent` waits for at most about a second. `first_wait` is the longest wait for the first
    list.
    """

    def __init__(
        self, ask_agent: AskAgent, clock: Callable[[], float] = time.time, first_wait: float = 5.0
    ) -> None:
        self._ask_agent, self._clock = ask_agent, clock
        self._index = RunIndex(stored_summary, clock)
        self._settings = ListedSettings(lambda entry: entry.directory / DATABASE_NAME)
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._lock = Lock()
        self._wanted, self._stopped = Flag(), Flag()
        self._age, self._first_wait = ListAge(), first_wait
        self._refreshed = Flag()
        self._thread = Thread(target=self._refresh_again, name="sentinel-runs", daemon=True)

    def start(self) -> None:
        """Begin to read the list."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._stopped.set()
        self._wanted.set()

    def list_runs(self, query: RunQuery) -> dict[str, Any]:
        """The page of the list, see `query_runs`.

        With how old it is, and since when the home directory does not answer, see `ListAge`.
        """
        self._ask()
        if query.has_settings:
            self._want_settings()
        return (
            query_runs(self._index.entries(), query, self._clock(), self._settings.of)
            | self._age.fields()
            | {"unread_settings": self._settings.missing_count}
        )

    def list_settings(self, words: str) -> dict[str, Any]:
        """The settings of the runs that a filter selects, see `describe_settings`.

        `unread_settings` is the number of runs whose settings are not read yet.
        """
        self._ask()
        self._want_settings()
        runs = filter_runs(self._index.entries(), words)
        found = describe_settings(map(self._settings.of, runs))
        return {"settings": found, "unread_settings": self._settings.missing_count}

    def _ask(self) -> None:
        """Let the home directory be read again; wait for that if the last time is long ago."""
        age = self._age.seconds
        if age >= REFRESH_SECONDS:
            self._age.ask()
            self._refreshed.clear()
            self._wanted.set()
        if age >= OUTDATED_SECONDS:
            self._refreshed.wait(self._first_wait if age == inf else MAX_LIST_WAIT_SECONDS)

    def _want_settings(self) -> None:
        """Let the settings be read; the first time, wait a moment for them."""
        if self._settings.want():
            self._wanted.set()
            self._settings.wait(MAX_LIST_WAIT_SECONDS)

    def view(self, run: str) -> RunView | None:
        """The view of a run; None if there is none of that id. May wait for a file server."""
        database = self.path(run)
        if database is None:
            with self._lock:
                self._views.pop(run, None)
            return None
        with self._lock:
            view = self._views.get(run)
            if view is None or view.database != database:
                view = self._views[run] = self._make_view(run, database)
            self._views.move_to_end(run)
            for name, each in [*self._views.items()][:-MAX_VIEWS]:
                if each.events is None or not each.events.has_viewers:
                    del self._views[name]
        return view

    def path(self, run: str) -> Path | None:
        """The database of a run; None if there is none of that id. May wait for a file server."""
        return run_database(run)

    def _make_view(self, run: str, database: Path) -> RunView:
        source = StateSource(run, database, self._ask_agent)
        suppression = SuppressionApi(run, database, source.why_not_notifying)
        reader = RunReader(database, stores_series=True)
        return RunView(run, reader, source.read, database, suppression)

    def _refresh_again(self) -> None:
        while not self._stopped.is_set():
            self._wanted.clear()
            try:
                self._index.refresh()
                self._age.note_read()
                self._refreshed.set()
                while self._index.complete_one() and not self._is_interrupted():
                    pass
                self._settings.refresh(self._index.entries())
                # At least one, however often the list is looked at.
                while self._settings.read_one() and not self._is_interrupted():
                    pass
            except Exception:
                log.exception("The runs cannot be listed")
            self._wanted.wait()
            time.sleep(0.01)

    def _is_interrupted(self) -> bool:
        return self._wanted.is_set() or self._stopped.is_set()


class StateSource:
    """The state of a run: its agent's answer, or what the database holds if there is no agent."""

    def __init__(self, run: str, database: Path, ask_agent: AskAgent) -> None:
        self._run, self._database, self._ask_agent = run, database, ask_agent
        self._ask_at = 0.0
        self._mark: object = None
        self._stored: dict[str, Any] = {}
        self._last: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The state as `/api/run` answers it. Raises sqlite3.Error."""
        self._last = self._live_state() or self._stored_state()
        return self._last

    def why_not_notifying(self) -> str:
        """Why acknowledgements and silences have no effect; empty if they have."""
        state = self._live_state()
        if not state:
            return f"No agent serves run {self._run}, so nothing is sent that could be suppressed."
        cluster = state.get("cluster", {})
        if cluster.get("role") == "follower":
            head = head_address(cluster)
            return f"The head sends the notifications: ask the agent of that node ({head})."
        return ""

    def _live_state(self) -> dict[str, Any]:
        now = monotonic()
        if now < self._ask_at:
            return {}
        state = self._ask_agent(self._database.parent)
        if state is None:
            waited = monotonic() - now
            self._ask_at = now + max(SILENT_AGENT_SECONDS, SILENT_AGENT_SHARE * waited)
        return state or {}

    def _stored_state(self) -> dict[str, Any]:
        mark = change_mark(self._database)
        if mark != self._mark:
            self._stored, self._mark = stored_state(self._database, self._run), mark
        return self._stored
