"""Tests of the history of records, incidents and cases."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from sqlite3 import DatabaseError

import pytest
from support.results import case_result

from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect
from sentinel.store.history import History


@pytest.fixture
def history(tmp_path):
    return History(connect(tmp_path / "sentinel.db"))


def record(step, event=Event.STEP, rank=WHOLE_RUN, **values):
    spread = {name: Spread(2, v, v, v, 2 * v, 0.0, 0, 1, (3,)) for name, v in values.items()}
    attributes = {"missing": "4"}
    return Record("run", rank, step, 9.0, event, values, attributes, spread, attempt=1)


def make_incident(state=IncidentState.FIRING, **changes):
    made = Incident(
        key=IncidentKey("run", WHOLE_RUN, "kl_blowup"),
        episode=1,
        severity=Severity.CRITICAL,
        signal="kl_ref",
        remedy="Stop.",
        finding=Finding("KL is high.", {"kl": 3.0}, rank=2),
        onset_step=5,
        opened_step=7,
        opened_time=9.0,
        state=state,
    )
    return replace(made, **changes)


def incident_result(incident, reason=NotificationReason.OPENED):
    notification = Notification(reason, incident, 7, 9.0)
    return Result(record(7, Event.HEARTBEAT), notifications=(notification,))


def test_a_combined_record_is_restored_unchanged(history):
    stored = record(3, loss=1.5)
    history.update(Result(stored))

    assert list(history.records("run")) == [stored]


def test_a_mismatch_of_ranks_is_restored(history):
    stored = record(3, loss=1.5)
    mismatch = RankMismatch(1.5, 2, ((4, 1.25), (7, 1.75)))
    spread = replace(stored.spread["loss"], mismatch=mismatch)
    stored = replace(stored, spread={"loss": spread})
    history.update(Result(stored))

    assert list(history.records("run")) == [stored]


def test_nan_is_restored(history):
    history.update(Result(record(3, loss=nan)))

    (stored,) = history.records("run")
    assert isnan(stored.values["loss"])


def test_records_of_ranks_and_heartbeats_are_not_stored(history):
    history.update(Result(record(3, rank=0)))
    history.update(Result(record(3, Event.HEARTBEAT)))

    assert list(history.records("run")) == []


def test_the_newest_record_of_each_event_is_returned(history):
    for event, step in ((Event.START, 0), (Event.STEP, 1), (Event.SAVE, 1), (Event.STEP, 2)):
        history.update(Result(record(step, event)))

    latest = [(each.event, each.step) for each in history.latest_records("run")]
    assert latest == [(Event.START, 0), (Event.SAVE, 1), (Event.STEP, 2)]


def test_an_incident_is_stored_once_in_its_newest_state(history):
    history.update(incident_result(make_incident()))
    resolved = make_incident(IncidentState.RESOLVED, resolved_step=40, resolved_time=60.0)
    history.update(incident_result(resolved, NotificationReason.RESOLVED))

    (stored,) = history.incidents()
    assert (stored["state"], stored["resolved_step"], stored["rank"]) == ("resolved", 40, 2)
    assert (stored["summary"], stored["evidence"]) == ("KL is high.", {"kl": 3.0})


def test_incidents_refer_to_their_case_and_its_diagnosis(history):
    history.update(case_result())
    lead, other = sorted(history.incidents(), key=lambda incident: incident["detector"])

    assert lead["case"] == other["case"] == lead["name"]
    assert lead["diagnosis"] == other["diagnosis"]
    assert lead["diagnosis"] == {
        "cause": "policy_collapse",
        "title": "policy collapse",
        "confidence": 0.826,
        "confidence_text": "likely, 83 %",
        "severity": "critical",
        "evidence": [
            {"weight": 0.5, "text": "KL is 2 nats.", "step": 86},
            {"weight": 0.3, "text": "The KL coefficient is 0.0001.", "step": None},
        ],
        "remedy": "Go back.",
        "last_good_step": 80,
    }


def test_the_newest_diagnosis_of_a_case_is_shown(history):
    """It is shown even if no notification was sent."""
    history.update(case_result(diagnosis=None))
    assert [incident["diagnosis"] for incident in history.incidents()] == [None, None]

    history.update(case_result(NotificationReason.UPDATED, has_incidents=False))
    assert {each["diagnosis"]["cause"] for each in history.incidents()} == {"policy_collapse"}


def test_an_incident_without_a_case_has_no_diagnosis(history):
    history.update(incident_result(make_incident()))

    (stored,) = history.incidents()
    assert (stored["case"], stored["diagnosis"]) == (None, None)


@pytest.mark.parametrize(
    "damage",
    [
        "update step set vals = x'00'",
        "update step set layout = 99",
        "update step set event = 'stepp'",
        "update layout set body = 'no json'",
        "update layout set body = '[5]'",
    ],
)
def test_a_damaged_row_is_an_error_of_the_database(history, damage):
    """The agent sets the file aside then; any other error would end it again and again."""
    history.update(Result(record(3, loss=1.5)))
    history.connection.execute(damage)
    again = History(history.connection)

    with pytest.raises(DatabaseError):
        list(again.records("run"))


def test_a_damaged_block_is_an_error_of_the_database(history):
    values = "1, 1, 0, 'step', 1, 1, 1, 1, 1.0, 1.0, 1, x'00'"
    history.connection.execute(f"insert into block values({values})")
    history.connection.execute("""insert into layout values(1, '[["loss"],[],[]]')""")

    with pytest.raises(DatabaseError):
        list(history.records("run"))
