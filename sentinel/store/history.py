"""The history of a run: its combined records, incidents and cases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from itertools import islice
from math import nan
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sentinel.model.checkpoint_clause import fit_checkpoint_clause
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.json_safe import json_safe
from sentinel.model.record import CHECK_KEY, PROBLEM_KEY, WHOLE_RUN, Event, Record
from sentinel.pipeline.incidents import KnownEpisode
from sentinel.signals.hardware import NODE_SIGNALS
from sentinel.store import cases
from sentinel.store.record_rows import LayoutTable, RecordPacker, unpack
from sentinel.store.run_metadata import RunMetadataStore
from sentinel.store.series.blocks import Block, unpack_signals
from sentinel.store.storage_monitor import reading_storage
from sentinel.store.thresholds import ThresholdStore

if TYPE_CHECKING:
    from sentinel.pipeline.engine import Result

_ROW_COLUMNS = "attempt, step, time, event, layout, vals"
_ROWS_SQL = f"""
select id, {_ROW_COLUMNS} from step where id >= ? and id < ? order by id
"""  # noqa: S608
_BLOCKS_SQL = """
select first_id, attempt, event, count, first_step, step, first_time, time, layout, vals from block
"""
_MAX_ROW_ID = 2**63 - 1
_LATEST_STEP_SQL = f"""
select id, {_ROW_COLUMNS} from step where event = 'step' order by id desc limit 1
"""  # noqa: S608
_LATEST_OF_EVENT_SQL = f"""
select id, {_ROW_COLUMNS} from step where id =
    (select max(id) from step where event <> 'step' and event = ?)
"""  # noqa: S608
_FIRST_TIME_SQL = (
    "select time from step order by id limit 1",
    "select first_time from block order by first_id limit 1",
)
_THINNED_COUNT = "(select coalesce(sum(count), 0) from block where event = :event)"
_STEP_COUNT_SQL = f"""
select (select count(*) from step) - (select count(*) from step where event <> 'step')
    + {_THINNED_COUNT}
"""  # noqa: S608
_EVENT_COUNT_SQL = f"""
select (select count(*) from step where event <> 'step' and event = :event) + {_THINNED_COUNT}
"""  # noqa: S608
_CHECKS_SQL = f"""
select {_ROW_COLUMNS} from step where event <> 'step' and event = 'check' and id > (
    select coalesce(max(id), 0) from step
    where event <> 'step' and event in ('start', 'new_training'))
order by id
"""  # noqa: S608
_BEGAN_SQL = """
select coalesce(max(time), 0) from step
where event <> 'step' and event in ('start', 'new_training')
"""
_LAYER_ROWS_SQL = "select id from step where event <> 'step' and event = 'layers' order by id"
_RESTORED_EVENTS = ("start", "save", "eval", "stop", "new_training")

MAX_LAYER_ROWS = 1024
"""Records of layers above which every second one of the older half is deleted: of 128 layers one
takes about 8 KB, and where the database is in shared memory nothing else bounds them."""


@dataclass
class History:
    """Rows of the tables `step`, `block`, `metadata`, `incident`, `case_history`, `threshold`.

    Records of single ranks are not stored: the combined record holds their spread. Heartbeats are
    stored if they have values of the node, METADATA records if they change anything, and of CHECK
    records that are evidence the first of each rank, without what is compared. Of LAYERS
    records at most `MAX_LAYER_ROWS` are stored, the older ones farther apart. A row that
    cannot be decoded raises DamagedContentError. Make a new history after a rollback.
    """

    connection: sqlite3.Connection
    _packer: RecordPacker = field(default_factory=RecordPacker)
    _layer_count: int = MAX_LAYER_ROWS
    """Records of layers that are stored, at most; they are counted at the first one."""
    _evidence: set[tuple[int, str, float]] = field(default_factory=set)
    """Attempt, check and rank of the evidence that is stored."""

    def update(self, result: Result) -> None:
        """Store the record, incidents and cases of the result in the caller's transaction."""
        record = result.record
        is_stored = self.run_metadata.update(record)
        if record.event is Event.HEARTBEAT:
            is_stored = not NODE_SIGNALS.isdisjoint(record.values)
        elif record.event is Event.CHECK and PROBLEM_KEY not in record.attributes:
            record, is_stored = self._reduce_evidence(record)
        elif record.event not in {Event.METADATA, Event.ONSET}:
            is_stored = True
        if record.rank == WHOLE_RUN and is_stored:
            self._insert_record(record)
            if record.event is Event.LAYERS:
                self._thin_layers()
        for notification in result.notifications:
            self.store_incident(notification.incident)
        for incident in result.changed_incidents:
            self.store_incident(incident)
        for notification in result.case_notifications:
            cases.store_case(self.connection, notification)
        if result.thresholds:
            self.thresholds.update(record, result.thresholds)

    def delete_since(self, time: float) -> None:
        """Delete the records from that time on (epoch seconds), which are read again.

        Heartbeats are not in the rings, so they stay.
        """
        self.connection.execute("delete from step where time >= ? and event <> 'heartbeat'", [time])
        self.connection.execute("delete from block where first_time >= ?", [time])
        self.thresholds.delete_since(time)

    @cached_property
    def layouts(self) -> LayoutTable:
        """The layouts of the rows."""
        return LayoutTable(self.connection)

    @cached_property
    def thresholds(self) -> ThresholdStore:
        """The thresholds of the detectors."""
        return ThresholdStore(self.connection)

    @cached_property
    def run_metadata(self) -> RunMetadataStore:
        """The metadata of the run."""
        return RunMetadataStore(self.connection)

    def _insert_record(self, record: Record) -> None:
        layout, blob = self._packer.pack(record)
        self.connection.execute(
            "insert into step(attempt, step, time, event, layout, vals) values(?, ?, ?, ?, ?, ?)",
            (
                record.attempt,
                record.step,
                record.time,
                record.event.value,
                self.layouts.add(layout),
                blob,
            ),
        )

    def _reduce_evidence(self, record: Record) -> tuple[Record, bool]:
        """The record without the evidence itself, and whether it is the first of its rank."""
        check = record.attributes.get(CHECK_KEY, "")
        key = record.attempt, check, record.values.get("rank", 0.0)
        is_first = record.rank == WHOLE_RUN and key not in self._evidence
        if is_first:
            self._evidence.add(key)
        return replace(record, attributes={CHECK_KEY: check}), is_first

    def _thin_layers(self) -> None:
        """Delete every second of the older records of layers, if there are too many."""
        self._layer_count += 1
        if self._layer_count <= MAX_LAYER_ROWS:
            return
        rows = self.connection.execute(_LAYER_ROWS_SQL).fetchall()
        older = rows[1 : MAX_LAYER_ROWS // 2 : 2] if len(rows) > MAX_LAYER_ROWS else []
        self.connection.executemany("delete from step where id = ?", older)
        self._layer_count = len(rows) - len(older)

    def store_incident(self, incident: Incident) -> None:
        """Store the newest state of an incident in the caller's transaction."""
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
                json.dumps(json_safe(incident_to_dict(incident))),
            ),
        )

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident of the run as JSON with its case, the newest first."""
        rows = self.connection.execute(
            "select body from incident order by opened_time desc, name"
        ).fetchall()
        case_of = cases.cases_by_incident(self.connection)
        incidents = [json.loads(body) for (body,) in rows]
        return [
            incident | cases.case_fields(case_of.get(incident["name"])) for incident in incidents
        ]

    def episodes(self) -> dict[IncidentKey, dict[int, KnownEpisode]]:
        """The stored episodes of each detector by number.

        An agent without a snapshot continues from them: the outbox never sends a name again.
        """
        rows = self.connection.execute("select body from incident")
        found: dict[IncidentKey, dict[int, KnownEpisode]] = {}
        for body in (json.loads(text) for (text,) in rows):
            key = IncidentKey(body["run"], WHOLE_RUN, body["detector"])
            found.setdefault(key, {})[body["episode"]] = KnownEpisode(
                body["episode"],
                body["opened_step"],
                body["opened_time"],
                is_open=body["state"] != IncidentState.RESOLVED.value,
            )
        return found

    def first_time(self) -> float:
        """Time of the first record in seconds since the epoch; NaN if there is none."""
        rows = [self.connection.execute(query).fetchone() for query in _FIRST_TIME_SQL]
        return min((float(row[0]) for row in rows if row is not None), default=nan)

    def first_and_last_records(self, run: str, count: int) -> Iterator[Record]:
        """The first and the last `count` records that are stored in full; some of them twice."""
        (last,) = self.connection.execute("select coalesce(max(id), 0) from step").fetchone()
        for rows in (self.rows(run=run), self.rows(last - count + 1, run=run)):
            for _, record in islice(rows, count):
                yield record

    def event_count(self, event: Event) -> int:
        """Number of records of that event, also of those that are thinned."""
        query = _STEP_COUNT_SQL if event is Event.STEP else _EVENT_COUNT_SQL
        (count,) = self.connection.execute(query, {"event": event.value}).fetchone()
        return int(count)

    def has_alarms(self) -> bool:
        """Whether any incident of the run was a warning or critical."""
        query = "select 1 from incident where severity in ('warning', 'critical') limit 1"
        return self.connection.execute(query).fetchone() is not None

    def records(self, run: str) -> Iterator[Record]:
        """Every stored record, in the order of processing.

        Of a part of the run that was thinned, a record holds the means of several steps and is at
        the last of them.
        """
        rows = self.rows(run=run)
        blocks = ((block.first_id, block.to_record(run)) for block in self.blocks())
        for _, record in merge(rows, blocks, key=itemgetter(0)):
            yield record

    def rows(
        self, first: int = 0, end: int = _MAX_ROW_ID, run: str = ""
    ) -> Iterator[tuple[int, Record]]:
        """Ids and records of the rows from `first` up to `end` that are stored in full."""
        for number, *row in self.connection.execute(_ROWS_SQL, (first, end)):
            yield number, self._row_record(run, row)

    def blocks(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """The thinned part of the history, oldest first, or the blocks with these ids."""
        condition = ""
        if numbers is not None:
            condition = f"where id in ({','.join('?' * len(numbers))})"
        query = f"{_BLOCKS_SQL} {condition} order by first_id"
        for first_id, *header, layout, blob in self.connection.execute(query, numbers or ()):
            attempt, event, count, first_step, step, first_time, time = header
            with reading_storage():
                signals = unpack_signals(self.layouts.get(layout), blob)
                kind = Event(event)
            yield Block(attempt, kind, count, first_id, first_step, step, first_time, time, signals)

    def latest_records(self, run: str) -> list[Record]:
        """The newest record of START, SAVE, STEP, EVAL, STOP and TRAINING each, oldest first."""
        rows = self.connection.execute(_LATEST_STEP_SQL).fetchall()
        for event in _RESTORED_EVENTS:
            rows += self.connection.execute(_LATEST_OF_EVENT_SQL, [event]).fetchall()
        return [self._row_record(run, row) for _, *row in sorted(rows)]

    def check_records(self) -> list[Record]:
        """What checks reported in the newest attempt and training of the run, oldest first."""
        return [self._row_record("", row) for row in self.connection.execute(_CHECKS_SQL)]

    def began(self) -> float:
        """When the newest attempt and training began, in seconds since the epoch; 0 if unknown."""
        ((time,),) = self.connection.execute(_BEGAN_SQL).fetchall()
        return float(time)

    def _row_record(self, run: str, row: Sequence[Any]) -> Record:
        *header, layout, blob = row
        with reading_storage():
            return unpack(run, self.layouts.get(layout), blob, header)


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
        "remedy": fit_checkpoint_clause(incident.remedy, incident.last_good_step),
        "onset_step": incident.onset_step,
        "opened_step": incident.opened_step,
        "opened_time": incident.opened_time,
        "resolved_step": incident.resolved_step,
        "resolved_time": incident.resolved_time,
        "resolution": None if incident.resolution is None else incident.resolution.value,
        "flaps": incident.flaps,
        "last_good_step": incident.last_good_step,
        "onset": incident.onset_to_dict(),
    }
