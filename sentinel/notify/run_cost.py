"""GPU hours that a run has used since the onset of a critical case."""

from __future__ import annotations

import sqlite3

from sentinel.live.provenance.run_provenance import GPU_KEY
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.quantity_text import format_number
from sentinel.model.record import WHOLE_RUN
from sentinel.store import commands

MIN_GPU_HOURS = 0.1
"""Less is not stated."""

_METADATA_SQL = "select number from metadata where rank = ? and key = ?"
# The newest row: after a restart, steps are counted from a checkpoint again.
_TIME_SQL = "select time from step where event = 'step' and step <= ? order by id desc limit 1"


def cost_note(connection: sqlite3.Connection, notification: Notification) -> str:
    """GPU hours between the onset of a critical case and this notification, as a sentence.

    Every rank counts as one GPU. Where a stop was only noted, because the mode of actions is
    `shadow`, the sentence also states what it would have saved. Empty without a GPU, below
    `MIN_GPU_HOURS`, and for a case that is resolved, perhaps long after the run ended.
    """
    is_critical = notification.incident.severity is Severity.CRITICAL
    is_open = notification.reason is not NotificationReason.RESOLVED
    gpus = _gpus(connection) if is_critical and is_open else 0
    if not gpus:
        return ""
    used = gpus * _hours_since(connection, notification.onset_step, notification.time)
    if used < MIN_GPU_HOURS:
        return ""
    text = f"{format_number(used, 2)} GPU hours were used since the onset"
    stop_step = commands.shadow_stop_step(connection, notification.incident.name)
    if stop_step is not None and notification.step > stop_step:
        saved = gpus * _hours_since(connection, stop_step, notification.time)
        return f"{text}; the stop would have saved {format_number(saved, 2)} of them."
    return f"{text}."


def _gpus(connection: sqlite3.Connection) -> int:
    """Ranks of the run, if its node has a GPU; else 0."""
    if connection.execute(_METADATA_SQL, [WHOLE_RUN, GPU_KEY]).fetchone() is None:
        return 0
    row = connection.execute(_METADATA_SQL, [WHOLE_RUN, "world_size"]).fetchone()
    return 0 if row is None else int(row[0] or 0)


def _hours_since(connection: sqlite3.Connection, step: int, time: float) -> float:
    row = connection.execute(_TIME_SQL, [step]).fetchone()
    return 0.0 if row is None else max(0.0, time - row[0]) / 3600
