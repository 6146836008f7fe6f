"""The state of a run without an agent, restored from its database as an agent restores it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sentinel.config.settings import Settings
from sentinel.metrics.exposition import Exposition
from sentinel.metrics.run_status import with_current_values
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.model.run_states import ACTIVE_STATES, STATES_WITHOUT_OUTCOME, UNFINISHED
from sentinel.pipeline import pipeline
from sentinel.pipeline.engine import Result
from sentinel.store.cases import all_cases, urgency
from sentinel.store.database import connect_read_only
from sentinel.store.history import History
from sentinel.store.notes import NOTE_NAME, read_note
from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import read_summary
from sentinel.store.series.run_series import ignore
from sentinel.store.silences import Acknowledgement, ack_to_dict, load_acks

MAX_COVERAGE_ROWS = 64
"""Number of the first and of the last rows whose keys are judged."""


def stored_state(
    path: Path, run: str = "", clock: Callable[[], float] = time.time, *, is_log: bool = False
) -> dict[str, Any]:
    """What `/api/run` of an agent answers, for the run whose database is at `path`.

    `is_live` is false, and the state of a run without an outcome is `unfinished`. `run` is its id,
    by default the name of the directory. `is_log` is whether it was imported from a log, which no
    agent follows. Raises sqlite3.Error.
    """
    with closing(connect_read_only(path.absolute())) as connection:
        history = History(connection)
        run = run or path.parent.name
        exposition = Exposition(Counters(), {}, run=run, readable_signals=_readable_signals())
        exposition.set_start_time(history.first_time())
        latest = history.latest_records(run)
        for record in (*latest, *_rank_records(latest)):
            exposition.update(Result(record))
        exposition.set_counts(history.event_count(Event.STEP), history.event_count(Event.SAVE))
        for record in history.run_metadata.to_records(run):
            exposition.update(Result(record))
        for record in history.first_and_last_records(run, MAX_COVERAGE_ROWS):
            if record.event in (Event.STEP, Event.EVAL):
                exposition.coverage.update(record.values)
        unresolved = [each for each in history.incidents() if each["state"] != "resolved"]
        names = {each["name"] for each in unresolved}
        every_case = all_cases(connection, clock(), ignore)
        acks = load_acks(connection)
    # A case of an earlier version may have no message.
    cases = [
        each
        for each in every_case
        if each["message"] and each["state"] == "firing" and not names.isdisjoint(each["incidents"])
    ]
    state = exposition.state()
    if note := read_note(path.parent / NOTE_NAME):
        state["note"] = note.to_dict()
    is_unfinished = state["state"] in ACTIVE_STATES
    return state | {
        "is_live": False,
        "is_log": is_log,
        "active": False,
        "state": UNFINISHED if is_unfinished else state["state"],
        "cases": with_current_values(
            sorted(cases, key=urgency),
            unresolved,
            state["signals"],
            is_live=False,
        ),
        "incidents": [each | _suppression_fields(acks.get(each["name"])) for each in unresolved],
    }


def stored_summary(run: str, database: Path, *, is_log: bool = False) -> dict[str, Any]:
    """The summary of a run without an agent, from its database. Raises sqlite3.Error."""
    return read_summary(stored_state(database, run, is_log=is_log), RunReader(database))


def log_state(stored: Mapping[str, Any], *, is_growing: bool) -> dict[str, Any]:
    """The state of a run that is known by its log alone, which was imported as `stored`.

    The training runs while the log grows, unless the log states that it ended.
    """
    if not is_growing or stored["state"] not in STATES_WITHOUT_OUTCOME:
        return dict(stored)
    return {**stored, "is_live": True, "active": True, "state": "running"}


def _rank_records(latest: list[Record]) -> Iterator[Record]:
    """The last step of each rank whose values are stored, and its end."""
    step = next((record for record in reversed(latest) if record.event is Event.STEP), None)
    if step is None:
        return
    spread = max(step.spread.values(), key=lambda each: len(each.ranks), default=None)
    timed = step.spread.get("step_time")
    seconds = {} if timed is None else dict(zip(timed.ranks, timed.rank_values, strict=True))
    for rank in () if spread is None else spread.ranks:
        values = {"step_time": seconds[rank]} if rank in seconds else {}
        last = replace(step, rank=rank, values=values, spread={})
        yield last
        yield replace(last, event=Event.STOP, values={}, attributes={"outcome": "finished"})


def _suppression_fields(ack: Acknowledgement | None) -> dict[str, Any]:
    return {"silenced": None, "acknowledged": None if ack is None else ack_to_dict(ack)}


@cache
def _readable_signals() -> frozenset[str]:
    return pipeline.build(Settings.model_validate({}), Counters()).readable_signals
