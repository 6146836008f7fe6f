"""Migrations of the database, one function for each schema version since 0.1.0.

Each runs in the transaction of its caller. A migration that was released never changes: it spells
out the names of its time instead of importing constants.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable, Iterable

from sentinel.model.json_safe import JsonObject
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.store.record_rows import LayoutTable, RecordPacker, spread_from_json

_RENAME_0_1_0_SQL = """
alter table input rename to journal;
alter table snapshot rename column one to id;
alter table step rename column facts to attributes;
drop view facts;
alter table fact rename to metadata;
create view run_metadata as
    select key, coalesce(text, number) as value, attempt, step, time from metadata where rank = -1;
alter table sample rename column facts to attributes;
alter table told rename to case_history;
alter table outbox rename column page to notification;
alter table owed rename to pending_notification;
alter table pending_notification rename column page to notification;
alter table silence rename column begins to starts_at;
alter table silence rename column ends to ends_at;
alter table silence rename column who to author;
alter table silence rename column why to comment;
alter table ack rename column who to author;
alter table ack rename column why to comment;
alter table onset rename column last_good to last_good_step;
alter table request rename to command;
alter table command rename column since to ready_from_index;
alter table command rename column beat to due_step_index;
alter table command rename column deeds to actions;
alter table command add column refusal text;
alter table node rename column heard to sequences;
alter table node rename column told to state;
update step set event = 'heartbeat' where event = 'tick';
update step set event = 'metadata' where event = 'facts';
update cluster set key = 'attempt_map' where key = 'generations';
update cluster set key = 'spool_id' where key = 'spool';
update metadata set key = 'patch/' || substr(key, 5) where key like 'tap/%';
delete from journal;
delete from spool;
delete from node;
insert or replace into snapshot(id, state) values(1, '""');
"""
"""Journal, spool and nodes are emptied: only the version that packed their rows can read them.

The empty snapshot makes the agent take the number of the last episodes from the history.
"""

_REASONS = {"worsened": "escalated", "joined": "updated", "named": "updated"}


def migrate_from_0_1_0(connection: sqlite3.Connection) -> None:
    """Schema 9 to 10: tables, columns and JSON keys get the names of 0.2.0."""
    execute_script(connection, _RENAME_0_1_0_SQL)
    _rewrite_json(connection, "outbox", "notification", _rename_notification_keys)
    _rewrite_json(connection, "pending_notification", "notification", _rename_notification_keys)
    _rewrite_json(connection, "case_history", "body", _rename_case_keys)


_COALESCED_OUTBOX_SQL = """
alter table outbox add column incident text not null default '';
alter table outbox add column reason text not null default '';
alter table outbox add column unanswered integer not null default 0;
alter table outbox add column finished_at real;
alter table outbox add column receipt text;
alter table outbox add column digest text;
create index outbox_by_incident on outbox(incident, sink);
create table sink_pause(
    sink text primary key, until real not null);
update outbox set incident = key;
update outbox set
    incident = coalesce(json_extract(notification, '$.incident_name'), key),
    reason = coalesce(json_extract(notification, '$.notification.reason'), '')
    where json_valid(notification);
update outbox set finished_at = created where state in ('delivered', 'dead');
update outbox set unanswered = tries where state in ('queued', 'sending')
"""


def migrate_to_coalesced_outbox(connection: sqlite3.Connection) -> None:
    """Schema 10 to 11: the outbox has receipts, and names incident and reason in columns."""
    for table in ("outbox", "pending_notification"):
        _rewrite_json(connection, table, "notification", _rename_update_reasons)
    execute_script(connection, _COALESCED_OUTBOX_SQL)


def _rename_update_reasons(body: JsonObject) -> None:
    notification = body["notification"]
    if notification["reason"] in ("incident_added", "cause_found"):
        notification["reason"] = "updated"


_PACKED_HISTORY_SQL = """
create table layout(
    id integer primary key, body text not null unique);
drop index step_by_step;
alter table step rename to step_11;
create table step(
    id integer primary key, attempt integer not null, step integer not null, time real not null,
    event text not null, layout integer not null, vals blob not null);
create index step_by_event on step(event, step) where event <> 'step';
create index step_by_layout on step(layout);
create table block(
    id integer primary key, level integer not null, attempt integer not null,
    event text not null, count integer not null, first_id integer not null,
    first_step integer not null, step integer not null, first_time real not null,
    time real not null, layout integer not null, vals blob not null);
create index block_by_level on block(level);
create index block_by_layout on block(layout);
create table thinning(
    id integer primary key check(id = 1), next_id integer not null)
"""

_STEPS_11_SQL = """
select id, attempt, step, time, event, vals, spread, attributes from step_11 order by id
"""


def migrate_to_packed_history(connection: sqlite3.Connection) -> None:
    """Schema 11 to 12: rows of the history are packed numbers instead of JSON.

    Values, means, minima and maxima stay exact. Rows that hold no JSON are left out.
    """
    execute_script(connection, _PACKED_HISTORY_SQL)
    packer, layouts = RecordPacker(exact=True), LayoutTable(connection)
    for number, attempt, step, time, event, *texts in connection.execute(_STEPS_11_SQL):
        try:
            values, spread, attributes = map(json.loads, texts)
            record = Record(
                "",
                WHOLE_RUN,
                step,
                time,
                values=values,
                spread={name: spread_from_json(row) for name, row in spread.items()},
                attributes=attributes,
            )
            layout, blob = packer.pack(record)
        except (ValueError, KeyError, TypeError, AttributeError, LookupError, struct.error):
            continue
        connection.execute(
            "insert into step values(?, ?, ?, ?, ?, ?, ?)",
            (number, attempt, step, time, event, layouts.add(layout), blob),
        )
    connection.execute("drop table step_11")


_RUN_PAGES_SQL = """
alter table case_history add column notification text not null default '';
create table threshold(
    id integer primary key, detector text not null, signal text not null,
    attempt integer not null, step integer not null, time real not null, value real not null);
create table media(
    id integer primary key, name text not null, step integer not null, time real not null,
    kind text not null, content_type text not null, width integer, height integer,
    source text, offset integer, length integer, body blob);
create index block_by_first_id on block(event, first_id);
alter table layout rename to layout_12;
create table layout(
    id integer primary key autoincrement, body text not null unique);
insert into layout select id, body from layout_12;
drop table layout_12;
update case_history set notification = coalesce((
    select notification from outbox where incident = case_history.name and notification <> ''
    order by created desc, rowid desc limit 1), '')
"""


def migrate_to_run_pages(connection: sqlite3.Connection) -> None:
    """Schema 12 to 13: cases have their notification; thresholds of detectors; logged media.

    The notification of a stored case is the newest one in the outbox. The id of a layout is never
    given to another one, so that readers may remember layouts.
    """
    execute_script(connection, _RUN_PAGES_SQL)


def migrate_to_one_onset(connection: sqlite3.Connection) -> None:
    """Schema 13 to 14: an incident has one onset, with which its notifications were sent."""
    connection.execute("drop table onset")


def migrate_to_sink_addresses(connection: sqlite3.Connection) -> None:
    """Schema 14 to 15: which receiver each sink of the outbox has."""
    connection.execute("create table sink_address(sink text primary key, address text not null)")


def migrate_to_feedback(connection: sqlite3.Connection) -> None:
    """Schema 15 to 16: what people think of the notification of a case."""
    connection.execute(
        "create table feedback(case_name text primary key, mark text not null,"
        " time real not null, author text not null, comment text not null)"
    )


_DRAWN_ROWS_SQL = """
create table if not exists drawn_rows(
    id integer primary key, incident text not null, rank integer not null, step integer not null,
    drawn integer not null, indices blob not null, losses blob not null, gap text not null);
create index if not exists drawn_rows_by_incident on drawn_rows(incident)
"""


def migrate_to_drawn_rows(connection: sqlite3.Connection) -> None:
    """Schema 16 to 17: the rows of the data set behind an incident."""
    execute_script(connection, _DRAWN_ROWS_SQL)


def execute_script(connection: sqlite3.Connection, script: str) -> None:
    """Execute the statements of a script, none of which contains a semicolon.

    Unlike `executescript`, it does not commit the transaction that is under way.
    """
    for statement in script.split(";"):
        connection.execute(statement)


def _rewrite_json(
    connection: sqlite3.Connection, table: str, column: str, convert: Callable[[JsonObject], None]
) -> None:
    """Convert the JSON object of each row in place; rows that hold none stay as they are."""
    rows = connection.execute(f"select rowid, {column} from {table}").fetchall()  # noqa: S608
    for rowid, text in rows:
        try:
            body = json.loads(text)
            convert(body)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        connection.execute(
            f"update {table} set {column} = ? where rowid = ?",  # noqa: S608
            (json.dumps(body, ensure_ascii=False), rowid),
        )


def _rename_notification_keys(body: JsonObject) -> None:
    body["incident_name"] = body.pop("episode")
    notification = body["notification"] = body.pop("page")
    notification["reason"] = _REASONS.get(notification["reason"], notification["reason"])
    for incident in (notification["incident"], *notification["others"]):
        _rename_keys(incident, {"findings": "finding_count", "calm": "clear_count"}.items())


def _rename_case_keys(body: JsonObject) -> None:
    if body["diagnosis"] is not None:
        _rename_keys(body["diagnosis"], [("belief", "confidence_text")])


def _rename_keys(body: JsonObject, names: Iterable[tuple[str, str]]) -> None:
    for old, new in names:
        body[new] = body.pop(old)
