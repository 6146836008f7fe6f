"""History: what the run did, kept for people and for the next agent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

from sentinel.model.incident import Incident, IncidentKey, Onset
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread
from sentinel.pipeline.engine import Result
from sentinel.signals.hardware import NODE_SIGNALS
from sentinel.store import cases
from sentinel.store.onset_worker import load_onsets
from sentinel.store.run_metadata import RunMetadataStore

_ALL_RECORDS_SQL = "select attempt, step, time, event, vals, spread, facts from step order by id"
_LATEST_PER_EVENT_SQL = """
select attempt, step, time, event, vals, spread, facts from step where id in (
    select max(id) from step where event in ('start', 'save', 'step', 'eval', 'stop')
    group by event)
order by id
"""

_SPREAD_FIELDS = tuple(field.name for field in fields(Spread))
_SPREAD_VALUES = attrgetter(*_SPREAD_FIELDS)
"""A spread as its values in order; `asdict` would copy each, ten times as slowly."""


@dataclass
class History:
    """Rows of the tables `step`, `fact`, `incident` and `told`, in the caller's transaction.

    Records of single ranks are not kept one by one: the combined record holds their spread. Of the
    ticks those are kept that tell of the machine; of facts, news.
    """

    connection: sqlite3.Connection

    def update(self, result: Result) -> None:
        """Store the record and whatever it opened or closed."""
        record = result.record
        news = self.run_metadata.update(record)
        if record.event is Event.HEARTBEAT:
            news = not NODE_SIGNALS.isdisjoint(record.values)
        elif record.event is not Event.METADATA:
            news = True
        if record.rank == WHOLE_RUN and news:
            self._insert_record(record)
        for page in result.notifications:
            self._store_incident(page.incident)
        for incident in result.changed_incidents:
            self._store_incident(incident)
        for page in result.case_notifications:
            cases.store_case(self.connection, page)

    @cached_property
    def run_metadata(self) -> RunMetadataStore:
        """What the run said of itself."""
        return RunMetadataStore(self.connection)

    def _insert_record(self, record: Record) -> None:
        self.connection.execute(
            "insert into step(attempt, step, time, event, vals, spread, facts) "
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
        """Every incident of the run as plain data, the newest first, with its case."""
        rows = self.connection.execute(
            "select body from incident order by opened_time desc, name"
        ).fetchall()
        known, told = load_onsets(self.connection), cases.cases_by_incident(self.connection)
        found = [(body["name"], body) for (text,) in rows for body in (json.loads(text),)]
        return [
            body | onset_fields(known.get(name)) | cases.case_fields(told.get(name))
            for name, body in found
        ]

    def last_episodes(self) -> dict[IncidentKey, int]:
        """The last episode of each detector: whoever begins anew counts on from there.

        A name that people were told of before is never sent again.
        """
        rows = self.connection.execute("select body from incident")
        last: dict[IncidentKey, int] = {}
        for body in (json.loads(text) for (text,) in rows):
            key = IncidentKey(body["run"], WHOLE_RUN, body["detector"])
            last[key] = max(body["episode"], last.get(key, 0))
        return last

    def records(self, run: str) -> Iterator[Record]:
        """Every record kept, in the order they were judged."""
        for row in self.connection.execute(_ALL_RECORDS_SQL):
            yield _record_from_row(run, row)

    def latest_records(self, run: str) -> list[Record]:
        """The newest START, SAVE, STEP, EVAL and STOP, oldest first: how the run stood."""
        return [
            _record_from_row(run, row) for row in self.connection.execute(_LATEST_PER_EVENT_SQL)
        ]


def onset_fields(onset: Onset | None) -> dict[str, Any]:
    """When an incident was found to have begun, as plain data; `onset` is None where it was not."""
    return {"onset": None if onset is None else asdict(onset)}


def incident_to_dict(incident: Incident) -> dict[str, Any]:
    """One incident as plain data: what the API shows."""
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
        "flaps": incident.flaps,
        "last_good_step": incident.last_good_step,
    }


def _record_from_row(run: str, row: tuple[Any, ...]) -> Record:
    attempt, step, time, event, values, spread, facts = row
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=step,
        time=time,
        event=Event(event),
        values=json.loads(values),
        attributes=json.loads(facts),
        spread={name: _spread_from_row(told) for name, told in json.loads(spread).items()},
        attempt=attempt,
    )


def _spread_to_row(spread: Spread) -> tuple[Any, ...]:
    # Whoever is odd is so seldom that the column is left out; earlier versions had none.
    row = _SPREAD_VALUES(spread)
    return row[:-1] if spread.mismatch is None else (*row[:-1], astuple(spread.mismatch))


def _spread_from_row(row: list[Any]) -> Spread:
    named = dict(zip(_SPREAD_FIELDS, row, strict=False))
    odd = named.pop("odd", None)
    known = odd and RankMismatch(odd[0], odd[1], tuple((rank, value) for rank, value in odd[2]))
    return Spread(**named | {"bad_ranks": tuple(named["bad_ranks"]), "odd": known})
