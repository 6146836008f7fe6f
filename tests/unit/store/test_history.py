"""History: what is kept comes back as it was, and says how things stand."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest
from support.results import concluded

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
    facts = {"missing": "4"}
    return Record("run", rank, step, 9.0, event, values, facts, spread, attempt=1)


def incident(state=IncidentState.FIRING, **changes):
    told = Incident(
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
    return replace(told, **changes)


def page(told, reason=NotificationReason.OPENED):
    return Result(record(7, Event.HEARTBEAT), notifications=(Notification(reason, told, 7, 9.0),))


def test_a_combined_record_comes_back_as_it_was(history):
    kept = record(3, loss=1.5)
    history.update(Result(kept))

    assert list(history.records("run")) == [kept]


def test_who_was_odd_comes_back(history):
    kept = record(3, loss=1.5)
    odd = RankMismatch(1.5, 2, ((4, 1.25), (7, 1.75)))
    kept = replace(kept, spread={"loss": replace(kept.spread["loss"], odd=odd)})
    history.update(Result(kept))

    assert list(history.records("run")) == [kept]


def test_not_a_number_comes_back(history):
    history.update(Result(record(3, loss=nan)))

    (kept,) = history.records("run")
    assert isnan(kept.values["loss"])


def test_single_ranks_and_ticks_are_not_kept(history):
    history.update(Result(record(3, rank=0)))
    history.update(Result(record(3, Event.HEARTBEAT)))

    assert list(history.records("run")) == []


def test_the_last_of_each_kind_shows_the_run_as_it_stood(history):
    for event, step in ((Event.START, 0), (Event.STEP, 1), (Event.SAVE, 1), (Event.STEP, 2)):
        history.update(Result(record(step, event)))

    last = [(r.event, r.step) for r in history.latest_records("run")]
    assert last == [(Event.START, 0), (Event.SAVE, 1), (Event.STEP, 2)]


def test_an_incident_is_kept_once_in_its_newest_state(history):
    history.update(page(incident()))
    over = incident(IncidentState.RESOLVED, resolved_step=40, resolved_time=60.0)
    history.update(page(over, NotificationReason.RESOLVED))

    (told,) = history.incidents()
    assert (told["state"], told["resolved_step"], told["rank"]) == ("resolved", 40, 2)
    assert (told["summary"], told["evidence"]) == ("KL is high.", {"kl": 3.0})


def test_incidents_are_kept_with_their_case_and_what_is_behind_it(history):
    history.update(concluded())
    lead, other = sorted(history.incidents(), key=lambda told: told["detector"])

    assert lead["case"] == other["case"] == lead["name"]
    assert lead["diagnosis"] == other["diagnosis"]
    assert lead["diagnosis"] == {
        "cause": "policy_collapse",
        "title": "policy collapse",
        "confidence": 0.826,
        "belief": "likely, 83 %",
        "severity": "critical",
        "evidence": [
            {"weight": 0.5, "text": "KL is 2 nats.", "step": 86},
            {"weight": 0.3, "text": "The KL coefficient is 0.0001.", "step": None},
        ],
        "remedy": "Go back.",
        "last_good_step": 80,
    }


def test_the_newest_diagnosis_of_a_case_counts(history):
    """Whether people were told of it or not."""
    history.update(concluded(diagnosis=None))
    assert [told["diagnosis"] for told in history.incidents()] == [None, None]

    history.update(concluded(NotificationReason.UPDATED, pages=False))
    assert {told["diagnosis"]["cause"] for told in history.incidents()} == {"policy_collapse"}


def test_an_incident_of_no_case_has_none(history):
    history.update(page(incident()))

    (told,) = history.incidents()
    assert (told["case"], told["diagnosis"]) == (None, None)


def test_a_database_of_before_there_were_cases_is_read(tmp_path):
    with connect(tmp_path / "sentinel.db") as old:
        History(old).update(page(incident()))
        old.executescript("drop table told; pragma user_version=4")
    old.close()
    history = History(connect(tmp_path / "sentinel.db"))
    history.update(concluded())

    cases = {told["detector"]: told["case"] for told in history.incidents()}
    assert cases["reward_collapse"] == "grpo-7b/kl_blowup#1"
