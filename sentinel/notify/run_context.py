"""Where a run can be found: its host, command, model, pages and last good checkpoint."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from threading import Thread
from urllib.parse import quote

from sentinel.live.node.node_metrics import output_dir
from sentinel.model.notification import Notification, RunContext
from sentinel.signals.tracker_runs import tracker_runs
from sentinel.store.incident_rows import rows_text
from sentinel.store.record_rows import layout_from_json
from sentinel.store.storage_monitor import reading_storage

MAX_LOOKUP_SECONDS = 0.5
"""How long a notification waits for the file system of the checkpoints, which can hang."""

_SAVE_SQL = """
select body from layout where id = (
    select layout from step where event <> 'step' and event = 'save' and step = ?
    order by id desc limit 1)
"""
_CHECKPOINT_NAMES = {
    "transformers": "checkpoint-{step}",
    "trl": "checkpoint-{step}",
    "verl": "global_step_{step}",
}
"""Folder of a checkpoint in the output directory, by framework."""


def dashboard_of(run: str, dashboard_url: str) -> str:
    """The address of the dashboard of a run, for which `{run}` stands in the setting."""
    return dashboard_url.replace("{run}", quote(run, safe=""))


@dataclass
class RunContextReader:
    """Builds the context of notifications from what the agent has stored of the run.

    `public_url` is the address under which people reach the pages of runs; without it that is
    `agent_url`, which the agent knows once it listens. `dashboard_url` is that of a dashboard, in
    which `{run}` is replaced. `is_drill` marks every notification.
    """

    connection: sqlite3.Connection
    public_url: str = ""
    dashboard_url: str = ""
    is_drill: bool = False
    agent_url: str = ""
    _lookup: Thread | None = None

    def read(self, notification: Notification, metadata: Mapping[str, str | float]) -> RunContext:
        """The context of a notification; `metadata` are those of the run."""
        diagnosis = notification.diagnosis
        subject = notification.incident.key.detector if diagnosis is None else diagnosis.cause
        base = (self.public_url or self.agent_url).rstrip("/")
        name = notification.incident.key.run
        run = quote(name, safe="")
        return RunContext(
            host=str(metadata.get("host", "")),
            command=PurePath(str(metadata.get("script", ""))).name,
            model=str(metadata.get("model", "")),
            page_url=f"{base}/runs/{run}/" if base else "",
            dashboard_url=dashboard_of(name, self.dashboard_url),
            runbook_url=f"{base}/runbooks/{quote(subject, safe='')}" if base else "",
            open_command=f"sentinel report {name}" if base and not self.public_url else "",
            checkpoint_path=self._checkpoint_path(notification.last_good_step, metadata),
            is_drill=self.is_drill,
            trackers=tracker_runs(metadata),
            rows=rows_text(self.connection, (each.name for each in notification.incidents)),
        )

    def _checkpoint_path(self, step: int | None, metadata: Mapping[str, str | float]) -> str:
        """The path of the checkpoint of that step if it exists; empty if that is not known."""
        if step is None:
            return ""
        path = self._saved_path(step) or _usual_path(step, metadata)
        return str(path) if path is not None and self._exists(path) else ""

    def _saved_path(self, step: int) -> Path | None:
        row = self.connection.execute(_SAVE_SQL, [step]).fetchone()
        if row is None:
            return None
        with reading_storage():
            path = str(dict(layout_from_json(row[0]).attributes).get("path", ""))
        return Path(path) if path.startswith("/") and "\0" not in path else None

    def _exists(self, path: Path) -> bool:
        """Whether the path exists; False if the file system does not respond in time."""
        if self._lookup is not None and self._lookup.is_alive():
            return False
        found: list[bool] = []
        self._lookup = Thread(target=lambda: found.append(_exists(path)), daemon=True)
        self._lookup.start()
        self._lookup.join(MAX_LOOKUP_SECONDS)
        return found == [True]


def _usual_path(step: int, metadata: Mapping[str, str | float]) -> Path | None:
    """Where the framework writes the checkpoint of a step, as far as that is known."""
    directory = output_dir(metadata)
    name = _CHECKPOINT_NAMES.get(str(metadata.get("framework", "")))
    return None if directory is None or name is None else directory / name.format(step=step)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
