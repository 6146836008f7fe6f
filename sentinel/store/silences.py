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
from sentinel.model.incident import Incident, Tier
from sentinel.store import cases

LONGEST_WORDS = 500
"""Characters kept of why, and of by whom."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Pages of `detector`, of all where it is empty, are withheld until `ends`.

    Times are in seconds since the epoch.
    """

    detector: str
    begins: float
    ends: float
    by: str = ""
    why: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Somebody has the episode `incident` in hand, as it was at `severity`."""

    incident: str
    severity: Severity
    time: float
    by: str = ""
    why: str = ""

    def covers(self, incident: Incident) -> bool:
        """Whether who took it in hand knows of it as it is now; not once it got louder."""
        return self.incident == incident.name and incident.severity.order >= self.severity.order


@dataclass(frozen=True, slots=True)
class Quiet:
    """All that keeps pages from people at one moment; never changed, only replaced."""

    tier: Tier = Tier.PAGE
    silences: tuple[Silence, ...] = ()
    acks: Mapping[str, Ack] = field(default_factory=lambda: MappingProxyType({}))

    def at(self, now: float) -> Quiet:
        """Without the silences that are over by then."""
        lasting = tuple(silence for silence in self.silences if silence.ends > now)
        return self if lasting == self.silences else replace(self, silences=lasting)

    def silence_of(self, detector: str) -> Silence | None:
        """The silence that withholds pages of that detector for longest, if there is one."""
        over = [s for s in self.silences if s.detector in ("", detector)]
        return max(over, key=lambda silence: silence.ends, default=None)

    def hushes(self, detector: str) -> bool:
        """Whether nobody is told of that detector now."""
        return self.tier is Tier.QUIET or self.silence_of(detector) is not None

    def ack_of(self, incident: Incident) -> Ack | None:
        """Who has the incident in hand as it is now."""
        ack = self.acks.get(incident.name)
        return ack if ack is not None and ack.covers(incident) else None

    def in_hand(self, incidents: Sequence[Incident]) -> bool:
        """Whether somebody has a case in hand, by any of its incidents, the lead first.

        The lead is as loud as the case: who took a part of it in hand before the case grew louder
        does not know of it as it is now.
        """
        loud = incidents[0].severity.order
        acks = (self.ack_of(each) for each in incidents)
        return any(ack is not None and ack.severity.order <= loud for ack in acks)

    def severity(self, severity: Severity) -> Severity:
        """How loud people are told of something: nobody is woken but by a run of tier page."""
        woken = severity is Severity.CRITICAL and self.tier is not Tier.PAGE
        return Severity.WARNING if woken else severity

    def said(self, incident: Incident) -> dict[str, Any]:
        """What keeps the incident from people, as plain data."""
        silence, ack = self.silence_of(incident.key.detector), self.ack_of(incident)
        return {
            "silenced": None if silence is None else plain(silence),
            "acknowledged": None if ack is None else {**_words(ack), "time": ack.time},
        }


def enter(connection: sqlite3.Connection, new: Silence) -> Silence:
    """Enter a silence; it is given its number."""
    row = (new.detector, new.begins, new.ends, new.by[:LONGEST_WORDS], new.why[:LONGEST_WORDS])
    entered = connection.execute(
        "insert into silence(detector, begins, ends, who, why) values(?, ?, ?, ?, ?)", row
    )
    return replace(new, number=int(entered.lastrowid or 0))


def end(connection: sqlite3.Connection, detector: str, now: float) -> int:
    """End the silences of that detector, all of them where it is empty; how many there were."""
    asked = "update silence set ends = ?1 where ends > ?1 and (?2 = '' or detector = ?2)"
    return connection.execute(asked, (now, detector)).rowcount


def lasting(connection: sqlite3.Connection, now: float) -> tuple[Silence, ...]:
    """The silences that are not over, in the order they were entered."""
    rows = connection.execute(
        "select detector, begins, ends, who, why, id from silence where ends > ? order by id", [now]
    )
    return tuple(Silence(*row) for row in rows)


def acknowledge(
    connection: sqlite3.Connection, detector: str, now: float, by: str, why: str
) -> list[str]:
    """Take in hand what fires of that detector, of all where it is empty; names of the episodes.

    Each is taken in hand as loudly as people were told of it: as loudly as its case.
    """
    told = cases.kept(connection)
    rows = connection.execute(
        "select name, severity from incident where state = 'firing' and (?1 = '' or detector = ?1)"
        " order by name",
        [detector],
    ).fetchall()
    connection.executemany(
        "insert or replace into ack(incident, severity, time, who, why) values(?, ?, ?, ?, ?)",
        [
            (name, _louder(own, told.get(name)), now, by[:LONGEST_WORDS], why[:LONGEST_WORDS])
            for name, own in rows
        ],
    )
    return [str(name) for name, _ in rows]


def give_back(connection: sqlite3.Connection, detector: str) -> int:
    """Take back the acknowledgements of that detector, all where it is empty; how many."""
    return connection.execute(
        "delete from ack where ?1 = '' or incident in"
        " (select name from incident where detector = ?1)",
        [detector],
    ).rowcount


def acks(connection: sqlite3.Connection) -> dict[str, Ack]:
    """Who took what in hand, by the name of the episode."""
    rows = connection.execute("select incident, severity, time, who, why from ack")
    return {row[0]: Ack(row[0], Severity(row[1]), *row[2:]) for row in rows}


def plain(silence: Silence) -> dict[str, Any]:
    """The silence as plain data: number, detector, begins, ends, by, why."""
    return {
        "number": silence.number,
        "detector": silence.detector,
        "begins": silence.begins,
        "ends": silence.ends,
        **_words(silence),
    }


def signed(text: str, by: str, why: str) -> str:
    """The text with who said so, and why, where that is known.

    >>> signed("silenced", "ana", "it is known")
    'silenced by ana: it is known'
    """
    return text + (f" by {by}" if by else "") + (f": {why}" if why else "")


def moment(seconds: float) -> str:
    """That time as people of any place read it, to the minute.

    >>> moment(1_700_000_000.0)
    '2023-11-14 22:13 UTC'
    """
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _louder(own: str, case: Mapping[str, Any] | None) -> str:
    """The severity of an incident, or of its case where that is louder."""
    both = (own, own if case is None else case["severity"])
    return min(both, key=lambda severity: Severity(severity).order)


def _words(told: Silence | Ack) -> dict[str, str]:
    return {"by": told.by, "why": told.why}
