"""History: what the run did, kept for people and for the next agent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

from sentinel.model.hardware import MEASURED
from sentinel.model.incident import Incident, Key, Onset
from sentinel.model.record import WHOLE_RUN, Event, Odd, Record, Spread
from sentinel.pipeline.engine import Verdict
from sentinel.store import cases
from sentinel.store.onset_worker import onsets
from sentinel.store.run_metadata import Facts

_ALL = "select attempt, step, time, event, vals, spread, facts from step order by id"
_LAST = """
select attempt, step, time, event, vals, spread, facts from step where id in (
    select max(id) from step where event in ('start', 'save', 'step', 'eval', 'stop')
    group by event)
order by id
"""

_FIELDS = tuple(field.name for field in fields(Spread))
_ROW = attrgetter(*_FIELDS)
"""A spread as its values in order; `asdict` would copy each, ten times as slowly."""


@dataclass
class History:
    """Rows of the tables `step`, `fact`, `incident` and `told`, in the caller's transaction.

    Records of single ranks are not kept one by one: the combined record holds their spread. Of the
    ticks those are kept that tell of the machine; of facts, news.
    """

    connection: sqlite3.Connection

    def take(self, verdict: Verdict) -> None:
        """Store the record and whatever it opened or closed."""
        record = verdict.record
        news = self.facts.take(record)
        if record.event is Event.TICK:
            news = not MEASURED.isdisjoint(record.values)
        elif record.event is not Event.FACTS:
            news = True
        if record.rank == WHOLE_RUN and news:
            self._keep(record)
        for page in verdict.pages:
            self._enter(page.incident)
        for incident in verdict.moved:
            self._enter(incident)
        for page in verdict.told:
            cases.enter(self.connection, page)

    @cached_property
    def facts(self) -> Facts:
        """What the run said of itself."""
        return Facts(self.connection)

    def _keep(self, record: Record) -> None:
        self.connection.execute(
            "insert into step(attempt, step, time, event, vals, spread, facts) "
            "values(?, ?, ?, ?, ?, ?, ?)",
            (
                record.attempt,
                record.step,
                record.time,
                record.event.value,
                json.dumps(dict(record.values)),
                json.dumps({name: _row(spread) for name, spread in record.spread.items()}),
                json.dumps(dict(record.facts)),
            ),
        )

    def _enter(self, incident: Incident) -> None:
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
                json.dumps(described(incident)),
            ),
        )

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident of the run as plain data, the newest first, with its case."""
        rows = self.connection.execute(
            "select body from incident order by opened_time desc, name"
        ).fetchall()
        known, told = onsets(self.connection), cases.kept(self.connection)
        found = [(body["name"], body) for (text,) in rows for body in (json.loads(text),)]
        return [
            body | dated(known.get(name)) | cases.belonging(told.get(name)) for name, body in found
        ]

    def episodes(self) -> dict[Key, int]:
        """The last episode of each detector: whoever begins anew counts on from there.

        A name that people were told of before is never sent again.
        """
        rows = self.connection.execute("select body from incident")
        last: dict[Key, int] = {}
        for body in (json.loads(text) for (text,) in rows):
            key = Key(body["run"], WHOLE_RUN, body["detector"])
            last[key] = max(body["episode"], last.get(key, 0))
        return last

    def all(self, run: str) -> Iterator[Record]:
        """Every record kept, in the order they were judged."""
        for row in self.connection.execute(_ALL):
            yield _record(run, row)

    def last(self, run: str) -> list[Record]:
        """The newest START, SAVE, STEP, EVAL and STOP, oldest first: how the run stood."""
        return [_record(run, row) for row in self.connection.execute(_LAST)]


def dated(onset: Onset | None) -> dict[str, Any]:
    """When an incident was found to have begun, as plain data; `onset` is None where it was not."""
    return {"onset": None if onset is None else asdict(onset)}


def described(incident: Incident) -> dict[str, Any]:
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


def _record(run: str, row: tuple[Any, ...]) -> Record:
    attempt, step, time, event, values, spread, facts = row
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=step,
        time=time,
        event=Event(event),
        values=json.loads(values),
        facts=json.loads(facts),
        spread={name: _spread(told) for name, told in json.loads(spread).items()},
        attempt=attempt,
    )


def _row(spread: Spread) -> tuple[Any, ...]:
    # Whoever is odd is so seldom that the column is left out; earlier versions had none.
    row = _ROW(spread)
    return row[:-1] if spread.odd is None else (*row[:-1], astuple(spread.odd))


def _spread(told: list[Any]) -> Spread:
    named = dict(zip(_FIELDS, told, strict=False))
    odd = named.pop("odd", None)
    known = odd and Odd(odd[0], odd[1], tuple((rank, value) for rank, value in odd[2]))
    return Spread(**named | {"bad_ranks": tuple(named["bad_ranks"]), "odd": known})
