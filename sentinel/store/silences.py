"""Silences and acknowledgements, and whether they suppress an incident.

A silence mutes one detector, or all, until it expires. An acknowledgement mutes one incident until
its severity rises. The CLI writes both to the database of the run, and the agent reads them there.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, RunTier
from sentinel.store import cases

MAX_COMMENT_CHARS = 500
"""Characters stored of an author or a comment."""
MAX_SILENCE_DAYS = 30

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS_BY_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Silence(NamedTuple):
    """A period without notifications of `detector`, or of every detector if it is empty.

    Times are in seconds since the epoch.
    """

    detector: str
    starts_at: float
    ends_at: float
    author: str = ""
    comment: str = ""
    silence_id: int = 0


class Acknowledgement(NamedTuple):
    """An acknowledgement of the incident named `incident` at `severity`; epoch seconds."""

    incident: str
    severity: Severity
    time: float
    author: str = ""
    comment: str = ""

    def covers(self, incident: Incident) -> bool:
        """Whether it applies to the incident; not once the severity of the incident has risen."""
        return self.incident == incident.name and incident.severity.order >= self.severity.order


@dataclass(frozen=True, slots=True)
class Suppression:
    """Everything that suppresses notifications at one time; immutable."""

    tier: RunTier = RunTier.PAGE
    silences: tuple[Silence, ...] = ()
    acks: Mapping[str, Acknowledgement] = field(default_factory=lambda: MappingProxyType({}))

    def without_expired(self, now: float) -> Suppression:
        """The suppression without silences that end by `now` (epoch seconds)."""
        active = tuple(silence for silence in self.silences if silence.ends_at > now)
        return self if active == self.silences else replace(self, silences=active)

    def longest_silence(self, detector: str) -> Silence | None:
        """The silence of the detector that ends last, if any."""
        matching = [each for each in self.silences if each.detector in ("", detector)]
        return max(matching, key=lambda silence: silence.ends_at, default=None)

    def is_suppressed(self, detector: str) -> bool:
        """Whether notifications of the detector are suppressed now."""
        return self.tier is RunTier.QUIET or self.longest_silence(detector) is not None

    def acknowledgement(self, incident: Incident) -> Acknowledgement | None:
        """The acknowledgement that applies to the incident, if any."""
        ack = self.acks.get(incident.name)
        return ack if ack is not None and ack.covers(incident) else None

    def is_acknowledged(self, incidents: Sequence[Incident]) -> bool:
        """Whether a case is acknowledged by any of its incidents, of which the first is the lead.

        The lead has the severity of the case. An acknowledgement of another incident from before
        the severity of the case rose does not apply.
        """
        case_order = incidents[0].severity.order
        acks = (self.acknowledgement(each) for each in incidents)
        return any(ack is not None and ack.severity.order <= case_order for ack in acks)

    def notified_severity(self, severity: Severity) -> Severity:
        """The severity of a notification: critical becomes warning unless the tier is `page`."""
        is_lowered = severity is Severity.CRITICAL and self.tier is not RunTier.PAGE
        return Severity.WARNING if is_lowered else severity

    def suppression_fields(self, incident: Incident) -> dict[str, Any]:
        """The JSON fields of an incident that hold its silence and acknowledgement."""
        silence, ack = self.longest_silence(incident.key.detector), self.acknowledgement(incident)
        return {
            "silenced": None if silence is None else silence_to_dict(silence),
            "acknowledged": None if ack is None else {**_author_fields(ack), "time": ack.time},
        }


def parse_duration(text: str, max_days: int = MAX_SILENCE_DAYS) -> float:
    """Seconds of a duration. Raises ValueError for other text, 0, and more than `max_days`.

    >>> parse_duration("1h30m")
    5400.0
    """
    parts = _DURATION_PART.findall(text)
    seconds = sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not 0 < seconds <= max_days * 86400.0:
        raise ValueError(f"{text!r} is not a duration up to {max_days}d. Examples: 90s, 1h30m.")
    return seconds


def add_silence(connection: sqlite3.Connection, silence: Silence) -> Silence:
    """Store a silence; return it with its id."""
    row = (
        silence.detector,
        silence.starts_at,
        silence.ends_at,
        silence.author[:MAX_COMMENT_CHARS],
        silence.comment[:MAX_COMMENT_CHARS],
    )
    inserted = connection.execute(
        "insert into silence(detector, starts_at, ends_at, author, comment) values(?, ?, ?, ?, ?)",
        row,
    )
    return silence._replace(silence_id=int(inserted.lastrowid or 0))


def expire_silences(connection: sqlite3.Connection, detector: str, now: float) -> int:
    """End the active silences of a detector, or all if it is empty; return how many."""
    query = "update silence set ends_at = ?1 where ends_at > ?1 and (?2 = '' or detector = ?2)"
    return connection.execute(query, (now, detector)).rowcount


def active_silences(connection: sqlite3.Connection, now: float) -> tuple[Silence, ...]:
    """The silences that end after `now`, in the order of their ids."""
    rows = connection.execute(
        "select detector, starts_at, ends_at, author, comment, id from silence where ends_at > ?"
        " order by id",
        [now],
    )
    return tuple(Silence(*row) for row in rows)


def acknowledge(  # noqa: PLR0913 - the columns of a row, and two filters
    connection: sqlite3.Connection,
    detector: str,
    now: float,
    author: str,
    comment: str,
    *,
    incident: str = "",
) -> list[str]:
    """Acknowledge the firing incidents of a detector, or all if it is empty; return their names.

    With `incident`, only the one of that name. Each is acknowledged at the severity of its case,
    which is what notifications showed.
    """
    case_of = cases.cases_by_incident(connection)
    rows = connection.execute(
        "select name, severity from incident where state = 'firing' and (?1 = '' or detector = ?1)"
        " and (?2 = '' or name = ?2) order by name",
        (detector, incident),
    ).fetchall()
    connection.executemany(
        "insert or replace into ack(incident, severity, time, author, comment)"
        " values(?, ?, ?, ?, ?)",
        [
            (
                name,
                _higher_severity(severity, case_of.get(name)),
                now,
                author[:MAX_COMMENT_CHARS],
                comment[:MAX_COMMENT_CHARS],
            )
            for name, severity in rows
        ],
    )
    return [str(name) for name, _ in rows]


def withdraw_acks(connection: sqlite3.Connection, detector: str) -> int:
    """Delete the acknowledgements of a detector, or all if it is empty; return how many."""
    return connection.execute(
        "delete from ack where ?1 = '' or incident in"
        " (select name from incident where detector = ?1)",
        [detector],
    ).rowcount


def load_acks(connection: sqlite3.Connection) -> dict[str, Acknowledgement]:
    """The acknowledgements by the name of their incident."""
    rows = connection.execute("select incident, severity, time, author, comment from ack")
    return {row[0]: Acknowledgement(row[0], Severity(row[1]), *row[2:]) for row in rows}


def silence_to_dict(silence: Silence) -> dict[str, Any]:
    """A silence as JSON: id, detector, starts_at, ends_at, author, comment."""
    return {
        "id": silence.silence_id,
        "detector": silence.detector,
        "starts_at": silence.starts_at,
        "ends_at": silence.ends_at,
        **_author_fields(silence),
    }


def ack_to_dict(ack: Acknowledgement) -> dict[str, Any]:
    """An acknowledgement as JSON: incident, severity, time, author, comment."""
    return {
        "incident": ack.incident,
        "severity": ack.severity.value,
        "time": ack.time,
        **_author_fields(ack),
    }


def with_author(text: str, author: str, comment: str) -> str:
    """The text followed by author and comment, where they are not empty.

    >>> with_author("silenced", "ana", "it is known")
    'silenced by ana: it is known'
    """
    return text + (f" by {author}" if author else "") + (f": {comment}" if comment else "")


def format_utc_time(seconds: float) -> str:
    """The time in UTC to the minute; `seconds` since the epoch.

    >>> format_utc_time(1_700_000_000.0)
    '2023-11-14 22:13 UTC'
    """
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _higher_severity(incident_severity: str, case: Mapping[str, Any] | None) -> str:
    """The higher severity of an incident and its case."""
    if case is None:
        return incident_severity
    severities = (incident_severity, str(case["severity"]))
    return min(severities, key=lambda severity: Severity(severity).order)


def _author_fields(entry: Silence | Acknowledgement) -> dict[str, str]:
    return {"author": entry.author, "comment": entry.comment}
