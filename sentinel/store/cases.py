"""Cases: what people were told as one, as it is known by now; kept, and as plain data."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from sentinel.model.diagnosis import Diagnosis
from sentinel.model.incident import Page, Reason

Plain = dict[str, Any]


def enter(connection: sqlite3.Connection, page: Page) -> None:
    """Keep the newest of a case, in the caller's transaction."""
    connection.execute(
        "insert or replace into told values(?, ?, ?, ?, ?)",
        (
            page.incident.name,
            "resolved" if page.reason is Reason.RESOLVED else "firing",
            None if page.diagnosis is None else page.diagnosis.cause,
            page.incident.opened_time,
            json.dumps(case_of(page)),
        ),
    )


def kept(connection: sqlite3.Connection) -> dict[str, Plain]:
    """The case of each incident that is in one, by the incident's name."""
    rows = connection.execute("select body from told order by opened_time").fetchall()
    cases = [json.loads(body) for (body,) in rows]
    return {name: case for case in cases for name in case["incidents"]}


def belonging(case: Plain | None) -> Plain:
    """What an incident says of its case: the name, and what is behind it."""
    if case is None:
        return {"case": None, "diagnosis": None}
    return {"case": case["name"], "diagnosis": case["diagnosis"]}


def case_of(page: Page) -> Plain:
    """A case as plain data: `incidents` are names, that of the first is the case's own."""
    lead = page.incident
    return {
        "name": lead.name,
        "run": lead.key.run,
        "subject": page.subject,
        "severity": lead.severity.value,
        "onset_step": page.onset_step,
        "opened_step": lead.opened_step,
        "opened_time": lead.opened_time,
        "resolved_step": lead.resolved_step if page.reason is Reason.RESOLVED else None,
        "remedy": page.remedy,
        "last_good_step": page.last_good_step,
        "incidents": [each.name for each in page.incidents],
        "diagnosis": None if page.diagnosis is None else plain(page.diagnosis),
    }


def plain(diagnosis: Diagnosis) -> Plain:
    """A diagnosis as plain data: `belief` is its confidence in words."""
    return {
        "cause": diagnosis.cause,
        "title": diagnosis.title,
        "confidence": diagnosis.confidence,
        "belief": diagnosis.belief,
        "severity": None if diagnosis.severity is None else diagnosis.severity.value,
        "evidence": [asdict(clue) for clue in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": diagnosis.last_good_step,
    }
