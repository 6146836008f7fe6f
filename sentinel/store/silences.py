"""Silences: what people do not want to be told of now, or have taken in hand.

A silence is of one detector or of all, and ends by itself. An acknowledgement is of one episode,
and ends with it. Commands write them into the run's database, where its agent takes them up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, RunTier
from sentinel.store import cases

MAX_COMMENT_CHARS = 500
"""Characters kept of why, and of by whom."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Pages of `detector`, of all where it is empty, are withheld until `ends`.

    Times are in seconds since the epoch.
    """

    detector: str
    starts_at: float
    ends_at: float
    author: str = ""
    comment: str = ""
    silence_id: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody has the episode `incident` in hand, as it was at `severity`."""

    incident: str
    severity: Severity
    time: float
    author: str = ""
    comment: str = ""

    def covers(self, incident: Incident) -> bool:
        """Whether who took it in hand knows of it as it is now; not once it got louder."""
        return self.incident == incident.name and incident.severity.order >= self.severity.order


@dataclass(frozen=True, slots=True)
class Suppression:
    """All that keeps pages from people at one moment; never changed, only replaced."""

    tier: RunTier = RunTier.PAGE
    silences: tuple[Silence, ...] = ()
    acks: Mapping[str, Acknowledgement] = field(default_factory=lambda: MappingProxyType({}))

    def without_expired(self, now: float) -> Suppression:
        """Without the silences that are over by then."""
        lasting = tuple(silence for silence in self.silences if silence.ends_at > now)
        return self if lasting == self.silences else replace(self, silences=lasting)

    def longest_silence(self, detector: str) -> Silence | None:
        """The silence that withholds pages of that detector for longest, if there is one."""
        over = [s for s in self.silences if s.detector in ("", detector)]
        return max(over, key=lambda silence: silence.ends_at, default=None)

    def is_suppressed(self, detector: str) -> bool:
        """Whether nobody is told of that detector now."""
        return self.tier is RunTier.QUIET or self.longest_silence(detector) is not None

    def acknowledgement(self, incident: Incident) -> Acknowledgement | None:
        """Who has the incident in hand as it is now."""
        ack = self.acks.get(incident.name)
        return ack if ack is not None and ack.covers(incident) else None

    def is_acknowledged(self, incidents: Sequence[Incident]) -> bool:
        """Whether somebody has a case in hand, by any of its incidents, the lead first.

        The lead is as loud as the case: who took a part of it in hand before the case grew louder
        does not know of it as it is now.
        """
        loud = incidents[0].severity.order
        acks = (self.acknowledgement(each) for each in incidents)
        return any(ack is not None and ack.severity.order <= loud for ack in acks)

    def notified_severity(self, severity: Severity) -> Severity:
        """How loud people are told of something: nobody is woken but by a run of tier page."""
        woken = severity is Severity.CRITICAL and self.tier is not RunTier.PAGE
        return Severity.WARNING if woken else severity

    def suppression_fields(self, incident: Incident) -> dict[str, Any]:
        """What keeps the incident from people, as plain data."""
        silence, ack = self.longest_silence(incident.key.detector), self.acknowledgement(incident)
        return {
            "silenced": None if silence is None else silence_to_dict(silence),
            "acknowledged": None if ack is None else {**_author_fields(ack), "time": ack.time},
        }


def add_silence(connection: sqlite3.Connection, silence: Silence) -> Silence:
    """Enter a silence; it is given its number."""
    row = (
        silence.detector,
        silence.starts_at,
        silence.ends_at,
        silence.author[:MAX_COMMENT_CHARS],
        silence.comment[:MAX_COMMENT_CHARS],
    )
    entered = connection.execute(
        "insert into silence(detector, begins, ends, who, why) values(?, ?, ?, ?, ?)", row
    )
    return replace(silence, silence_id=int(entered.lastrowid or 0))


def expire_silences(connection: sqlite3.Connection, detector: str, now: float) -> int:
    """End the silences of that detector, all of them where it is empty; how many there were."""
    asked = "update silence set ends = ?1 where ends > ?1 and (?2 = '' or detector = ?2)"
    return connection.execute(asked, (now, detector)).rowcount


def active_silences(connection: sqlite3.Connection, now: float) -> tuple[Silence, ...]:
    """The silences that are not over, in the order they were entered."""
    rows = connection.execute(
        "select detector, begins, ends, who, why, id from silence where ends > ? order by id", [now]
    )
    return tuple(Silence(*row) for row in rows)


def acknowledge(
    connection: sqlite3.Connection, detector: str, now: float, author: str, comment: str
) -> list[str]:
    """Take in hand what fires of that detector, of all where it is empty; names of the episodes.

    Each is taken in hand as loudly as people were told of it: as loudly as its case.
    """
    told = cases.cases_by_incident(connection)
    rows = connection.execute(
        "select name, severity from incident where state = 'firing' and (?1 = '' or detector = ?1)"
        " order by name",
        [detector],
    ).fetchall()
    connection.executemany(
        "insert or replace into ack(incident, severity, time, who, why) values(?, ?, ?, ?, ?)",
        [
            (
                name,
                _higher_severity(own, told.get(name)),
                now,
                author[:MAX_COMMENT_CHARS],
                comment[:MAX_COMMENT_CHARS],
            )
            for name, own in rows
        ],
    )
    return [str(name) for name, _ in rows]


def withdraw_acks(connection: sqlite3.Connection, detector: str) -> int:
    """Take back the acknowledgements of that detector, all where it is empty; how many."""
    return connection.execute(
        "delete from ack where ?1 = '' or incident in"
        " (select name from incident where detector = ?1)",
        [detector],
    ).rowcount


def load_acks(connection: sqlite3.Connection) -> dict[str, Acknowledgement]:
    """Who took what in hand, by the name of the episode."""
    rows = connection.execute("select incident, severity, time, who, why from ack")
    return {row[0]: Acknowledgement(row[0], Severity(row[1]), *row[2:]) for row in rows}


def silence_to_dict(silence: Silence) -> dict[str, Any]:
    """The silence as plain data: number, detector, begins, ends, by, why."""
    return {
        "number": silence.silence_id,
        "detector": silence.detector,
        "starts_at": silence.starts_at,
        "ends_at": silence.ends_at,
        **_author_fields(silence),
    }


def with_author(text: str, author: str, comment: str) -> str:
    """The text with who said so, and why, where that is known.

    >>> signed("silenced", "ana", "it is known")
    'silenced by ana: it is known'
    """
    return text + (f" by {author}" if author else "") + (f": {comment}" if comment else "")


def format_utc_time(seconds: float) -> str:
    """That time as people of any place read it, to the minute.

    >>> moment(1_700_000_000.0)
    '2023-11-14 22:13 UTC'
    """
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _higher_severity(own: str, case: Mapping[str, Any] | None) -> str:
    """The severity of an incident, or of its case where that is louder."""
    both = (own, own if case is None else case["severity"])
    return min(both, key=lambda severity: Severity(severity).order)


def _author_fields(entry: Silence | Acknowledgement) -> dict[str, str]:
    return {"author": entry.author, "comment": entry.comment}
