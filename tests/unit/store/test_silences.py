"""Silences and acknowledgements: entered by people, ended by time or with the episode."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW, make_incident, incident_result

from sentinel.model.finding import Severity
from sentinel.model.incident import RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.store import silences
from sentinel.store.database import SCHEMA_VERSION, connect
from sentinel.store.history import History
from sentinel.store.silences import Acknowledgement, Silence, Suppression


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def test_a_silence_lasts_until_its_end(connection):
    first = silences.add_silence(connection, Silence("kl_blowup", NOW, NOW + 60, "ana", "known"))
    second = silences.add_silence(connection, Silence("", NOW, NOW + 3600))

    assert silences.active_silences(connection, NOW + 59) == (first, second)
    assert silences.active_silences(connection, NOW + 60) == (second,)
    assert first.silence_id != second.silence_id


def test_one_detectors_silences_are_ended_and_the_others_go_on(connection):
    for detector in ("kl_blowup", "kl_blowup", "loss_plateau"):
        silences.add_silence(connection, Silence(detector, NOW, NOW + 60))

    assert silences.expire_silences(connection, "kl_blowup", NOW + 1) == 2
    assert [s.detector for s in silences.active_silences(connection, NOW + 1)] == ["loss_plateau"]
    assert silences.expire_silences(connection, "", NOW + 1) == 1


def test_what_fires_is_acknowledged_and_what_is_over_is_not(connection):
    history = History(connection)
    history.update(incident_result(of=make_incident("kl_blowup")))
    history.update(incident_result(of=make_incident("loss_plateau", Severity.WARNING)))

    assert silences.acknowledge(connection, "kl_blowup", NOW, "ana", "mine") == [
        "grpo-7b/kl_blowup#1"
    ]
    assert silences.load_acks(connection) == {
        "grpo-7b/kl_blowup#1": Acknowledgement(
            "grpo-7b/kl_blowup#1", Severity.CRITICAL, NOW, "ana", "mine"
        )
    }
    assert len(silences.acknowledge(connection, "", NOW, "bo", "")) == 2
    assert silences.withdraw_acks(connection, "loss_plateau") == 1
    assert silences.withdraw_acks(connection, "") == 1


def test_an_incident_is_acknowledged_as_loudly_as_its_case_was_told(connection):
    lead = make_incident("kl_blowup", Severity.WARNING)
    loud = replace(lead, severity=Severity.CRITICAL)
    history = History(connection)
    history.update(
        replace(incident_result(of=lead), told=(Notification(NotificationReason.OPENED, loud, 100, NOW),))
    )
    silences.acknowledge(connection, "", NOW, "ana", "")

    assert silences.load_acks(connection)[lead.name].severity is Severity.CRITICAL


def test_a_part_in_hand_is_not_the_case_once_that_is_louder():
    part = make_incident("reward_collapse", Severity.WARNING)
    lead = make_incident("kl_blowup")
    known = Suppression(acks={part.name: Acknowledgement(part.name, Severity.WARNING, NOW)})

    assert known.is_acknowledged([replace(lead, severity=Severity.WARNING), part])
    assert not known.is_acknowledged([lead, part])


def test_an_acknowledgement_ends_where_it_gets_louder():
    known = make_incident(severity=Severity.WARNING)
    quiet = Suppression(acks={known.name: Acknowledgement(known.name, Severity.WARNING, NOW)})

    assert quiet.acknowledgement(known) is not None
    assert quiet.acknowledgement(make_incident(severity=Severity.CRITICAL)) is None
    assert quiet.acknowledgement(make_incident(severity=Severity.WARNING, episode=2)) is None


@pytest.mark.parametrize(
    ("tier", "hushed", "critical"),
    [
        (RunTier.PAGE, False, Severity.CRITICAL),
        (RunTier.NOTIFY, False, Severity.WARNING),
        (RunTier.QUIET, True, Severity.WARNING),
    ],
)
def test_only_a_run_of_tier_page_wakes_people(tier, hushed, critical):
    quiet = Suppression(tier)

    assert quiet.is_suppressed("kl_blowup") is hushed
    assert quiet.notified_severity(Severity.CRITICAL) is critical
    assert quiet.notified_severity(Severity.INFO) is Severity.INFO


def test_of_several_silences_the_longest_is_told():
    quiet = Suppression(silences=(Silence("", NOW, NOW + 60), Silence("kl_blowup", NOW, NOW + 90)))

    assert quiet.longest_silence("kl_blowup").ends_at == NOW + 90
    assert quiet.longest_silence("loss_plateau").ends_at == NOW + 60
    assert quiet.without_expired(NOW + 60).longest_silence("loss_plateau") is None


def test_what_is_said_of_an_incident_is_plain():
    known = make_incident()
    quiet = Suppression(
        silences=(Silence("", NOW, NOW + 60, "bo"),),
        acks={known.name: Acknowledgement(known.name, known.notified_severity, NOW, "ana", "mine")},
    )
    said = json.loads(json.dumps(quiet.suppression_fields(known)))

    assert (said["silenced"]["author"], said["silenced"]["ends_at"]) == ("bo", NOW + 60)
    assert said["acknowledged"] == {"author": "ana", "comment": "mine", "time": NOW}


def test_a_database_of_the_version_before_learns_of_silences(tmp_path):
    path = tmp_path / "sentinel.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute("pragma user_version=2")
    with closing(connect(path)) as connection:
        assert silences.active_silences(connection, NOW) == ()
        assert connection.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)
