"""The history of a run: its combined records, incidents and cases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from sentinel.model.incident import Incident, IncidentKey, Onset
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread
from sentinel.pipeline.engine import Result
from sentinel.signals.hardware import NODE_SIGNALS
from sentinel.store import cases
from sentinel.store.database import connect
from sentinel.store.run_metadata import RunMetadataStore

_ALL_RECORDS_SQL = (
    "select attempt, step, time, event, vals, spread, attributes from step order by id"
)
_LATEST_PER_EVENT_SQL = """
select attempt, step, time, event, vals, spread, attributes from step where id in (
    select max(id) from step where event in ('start', 'save', 'step', 'eval', 'stop')
    group by event)
order by id
"""

_SPREAD_FIELDS = tuple(field.name for field in fields(Spread))
_SPREAD_VALUES = attrgetter(*_SPREAD_FIELDS)
"""Returns the values of a spread in order, ten times as fast as `astuple`."""


@dataclass
class History:
    """Rows of the tables `step`, `metadata`, `incident` and `case_history`.

    Records of single ranks are not stored: the combined record holds their spread. Heartbeats are
    stored if they have values of the node, METADATA records if they change anything.
    """

    connection: sqlite3.Connection

    def update(self, result: Result) -> None:
        """Store the record, incidents and cases of the result in the caller's transaction."""
        record = result.record
        is_stored = self.run_metadata.update(record)
        if record.event is Event.HEARTBEAT:
            is_stored = not NODE_SIGNALS.isdisjoint(record.values)
        elif record.event is not Event.METADATA:
            is_stored = True
        if record.rank == WHOLE_RUN and is_stored:
            self._insert_record(record)
        for notification in result.notifications:
            self._store_incident(notification.incident)
        for incident in result.changed_incidents:
            self._store_incident(incident)
        for notification in result.case_notifications:
            cases.store_case(self.connection, notification)

    @cached_property
    def run_metadata(self) -> RunMetadataStore:
        """The metadata of the run."""
        return RunMetadataStore(self.connection)

    def _insert_record(self, record: Record) -> None:
        self.connection.execute(
            "insert into step(attempt, step, time, event, vals, spread, attributes) "
            "values(?, ?, ?, ?, ?, ?, ?)",
            (
                record.attempt,
                record.step,
                record.time,
                record.event.value,
                json.dumps(dict(record.values)),
                json.dumps(
                    {name: _spread_to_row(spread) for name, spread in record.spread.items()}
                ),
                json.dumps(dict(record.attributes)),
            ),
        )

    def _store_incident(self, incident: Incident) -> None:
        self.connection.execute(
            "insert or replace into incident values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                incident.name,
                incident.key.detector,
                incident.state.value,
                incident.severity.value,
                incident.onset_step,
                incident.opened_step,
                incident.opened_time,
                incident.resolved_step,
                incident.resolved_time,
                json.dumps(incident_to_dict(incident)),
            ),
        )

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident of the run as JSON with its onset and case, the newest first."""
        rows = self.connection.execute(
            "select body from incident order by opened_time desc, name"
        ).fetchall()
        onsets, case_of = load_onsets(self.connection), cases.cases_by_incident(self.connection)
        incidents = [json.loads(body) for (body,) in rows]
        return [
            incident
            | onset_fields(onsets.get(incident["name"]))
            | cases.case_fields(case_of.get(incident["name"]))
            for incident in incidents
        ]

    def last_episodes(self) -> dict[IncidentKey, int]:
        """The number of the last episode of each detector.

        An agent without a snapshot continues from it: the outbox never sends a name again.
        """
        rows = self.connection.execute("select body from incident")
        last: dict[IncidentKey, int] = {}
        for body in (json.loads(text) for (text,) in rows):
            key = IncidentKey(body["run"], WHOLE_RUN, body["detector"])
            last[key] = max(body["episode"], last.get(key, 0))
        return last

    def has_alarms(self) -> bool:
        """Whether any incident of the run was a warning or critical."""
        query = "select 1 from incident where severity in ('warning', 'critical') limit 1"
        return self.connection.execute(query).fetchone() is not None

    def records(self, run: str) -> Iterator[Record]:
        """Every stored record, in the order of processing."""
        for row in self.connection.execute(_ALL_RECORDS_SQL):
            yield _record_from_row(run, row)

    def latest_records(self, run: str) -> list[Record]:
        """The newest record of START, SAVE, STEP, EVAL and STOP each, oldest first."""
        return [
            _record_from_row(run, row) for row in self.connection.execute(_LATEST_PER_EVENT_SQL)
        ]


def read_incidents(path: Path) -> list[dict[str, Any]]:
    """`History.incidents` of the database at `path`, through a connection of its own."""
    with closing(connect(path)) as connection:
        return History(connection).incidents()


def load_onsets(connection: sqlite3.Connection) -> dict[str, Onset]:
    """The stored onsets by the name of the incident."""
    rows = connection.execute("select incident, step, earliest, latest, last_good_step from onset")
    return {name: Onset(*fields) for name, *fields in rows}


def onset_fields(onset: Onset | None) -> dict[str, Any]:
    """The JSON field of an incident that holds its estimated onset, or None."""
    return {"onset": None if onset is None else asdict(onset)}


def incident_to_dict(incident: Incident) -> dict[str, Any]:
    """One incident as JSON, as the API shows it."""
    return {
        "name": incident.name,
        "run": incident.key.run,
        "detector": incident.key.detector,
        "state": incident.state.value,
        "severity": incident.severity.value,
        "signal": incident.signal,
        "episode": incident.episode,
        "summary": incident.finding.summary,
        "evidence": dict(incident.finding.evidence),
        "rank": incident.finding.rank,
        "remedy": incident.remedy,
        "onset_step": incident.onset_step,
        "opened_step": incident.opened_step,
        "opened_time": incident.opened_time,
        "resolved_step": incident.resolved_step,
        "resolved_time": incident.resolved_time,
        "resolution": None if incident.resolution is None else incident.resolution.value,
        "flaps": incident.flaps,
        "last_good_step": incident.last_good_step,
    }


def _record_from_row(run: str, row: tuple[Any, ...]) -> Record:
    attempt, step, time, event, values, spread, attributes = row
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=step,
        time=time,
        event=Event(event),
        values=json.loads(values),
        attributes=json.loads(attributes),
        spread={name: _spread_from_row(row) for name, row in json.loads(spread).items()},
        attempt=attempt,
    )


def _spread_to_row(spread: Spread) -> tuple[Any, ...]:
    # A mismatch is rare, so the last column is left out without one.
    row = _SPREAD_VALUES(spread)
    return row[:-1] if spread.mismatch is None else (*row[:-1], astuple(spread.mismatch))


def _spread_from_row(row: list[Any]) -> Spread:
    values = dict(zip(_SPREAD_FIELDS, row, strict=False))
    values["bad_ranks"] = tuple(values["bad_ranks"])
    if "mismatch" in values:
        majority_value, count, ranks, *has_majority = values["mismatch"]
        values["mismatch"] = RankMismatch(
            majority_value, count, tuple(map(tuple, ranks)), *has_majority
        )
    return Spread(**values)
