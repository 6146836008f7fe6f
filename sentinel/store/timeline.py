"""The timeline of a run: the states of its detectors, and its events."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from sentinel.store.record_rows import LayoutTable
from sentinel.store.silences import Silence, load_acks

FIRING, ACKNOWLEDGED, SILENCED = "firing", "acknowledged", "silenced"

_INCIDENTS_SQL = """
select name, detector, severity, opened_step, opened_time, resolved_step, resolved_time
from incident order by opened_time, name
"""
_SILENCES_SQL = """
select detector, starts_at, ends_at, author, comment, id from silence order by starts_at
"""
_EVENTS_SQL = """
select event, step, time, layout from step
where event <> 'step'
    and event in ('start', 'save', 'eval', 'stop', 'phase', 'stage', 'new_training')
order by id desc limit ?
"""
_TEXTS = {
    "start": "started",
    "save": "checkpoint",
    "eval": "evaluation",
    "new_training": "another training",
}

StepAt = Callable[[float], int | None]
"""The step of the run at a time in seconds since the epoch."""


def build_timeline(
    connection: sqlite3.Connection, step_at: StepAt, now: float, max_events: int
) -> dict[str, Any]:
    """Keys: detectors, each with detector and intervals, and events, oldest first.

    An interval has incident, state (`firing`, `acknowledged` or `silenced`), severity, from_step,
    to_step, from_time and to_time (epoch seconds; None while it lasts). An event has event, step,
    time and text.
    """
    acks = load_acks(connection)
    silences = [Silence(*row) for row in connection.execute(_SILENCES_SQL)]
    by_detector: dict[str, list[dict[str, Any]]] = {}
    for name, detector, severity, *span in connection.execute(_INCIDENTS_SQL):
        opened_step, opened, resolved_step, resolved = span
        of_detector = [each for each in silences if each.detector in {"", detector}]
        ack = acks.get(name)
        cuts = {opened, *(time for each in of_detector for time in (each.starts_at, each.ends_at))}
        if ack is not None:
            cuts.add(ack.time)
        end = now if resolved is None else resolved
        times = [time for time in sorted(cuts) if opened <= time < max(end, opened + 1e-9)]
        intervals: list[dict[str, Any]] = []
        for time in times:
            state = FIRING
            if any(each.starts_at <= time < each.ends_at for each in of_detector):
                state = SILENCED
            elif ack is not None and ack.time <= time:
                state = ACKNOWLEDGED
            if intervals and intervals[-1]["state"] == state:
                continue
            step = opened_step if time == opened else step_at(time)
            if intervals:
                intervals[-1] |= {"to_step": step, "to_time": time}
            intervals.append({
                "incident": name, "state": state, "severity": severity,
                "from_step": step, "to_step": resolved_step,
                "from_time": time, "to_time": resolved,
            })  # fmt: skip
        by_detector.setdefault(detector, []).extend(intervals)
    return {
        "detectors": [
            {"detector": detector, "intervals": intervals}
            for detector, intervals in by_detector.items()
        ],
        "events": [*_events(connection, max_events)][::-1],
    }


def _events(connection: sqlite3.Connection, limit: int) -> Iterator[dict[str, Any]]:
    """The newest events, newest first."""
    layouts = LayoutTable(connection)
    for event, step, time, number in connection.execute(_EVENTS_SQL, [limit]):
        attributes = dict(layouts.get(number).attributes)
        text = _TEXTS.get(event, event)
        if event == "stop":
            text = attributes.get("outcome") or "stopped"
        elif event == "stage":
            text = " ".join(("stage", attributes.get("name", ""))).strip()
        elif event == "phase":
            text = " ".join((attributes.get("name", "phase"), attributes.get("edge", ""))).strip()
        yield {"event": event, "step": step, "time": time, "text": text}
