"""Silences and acknowledgements: entered by people, ended by time or with the episode."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW, incident, paged

from sentinel.model.finding import Severity
from sentinel.model.incident import Page, Reason, Tier
from sentinel.store import silences
from sentinel.store.database import SCHEMA_VERSION, connect
from sentinel.store.history import History
from sentinel.store.silences import Ack, Quiet, Silence


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def test_a_silence_lasts_until_its_end(connection):
    first = silences.enter(connection, Silence("kl_blowup", NOW, NOW + 60, "ana", "known"))
    second = silences.enter(connection, Silence("", NOW, NOW + 3600))

    assert silences.lasting(connection, NOW + 59) == (first, second)
    assert silences.lasting(connection, NOW + 60) == (second,)
    assert first.number != second.number


def test_one_detectors_silences_are_ended_and_the_others_go_on(connection):
    for detector in ("kl_blowup", "kl_blowup", "loss_plateau"):
        silences.enter(connection, Silence(detector, NOW, NOW + 60))

    assert silences.end(connection, "kl_blowup", NOW + 1) == 2
    assert [s.detector for s in silences.lasting(connection, NOW + 1)] == ["loss_plateau"]
    assert silences.end(connection, "", NOW + 1) == 1


def test_what_fires_is_acknowledged_and_what_is_over_is_not(connection):
    history = History(connection)
    history.take(paged(of=incident("kl_blowup")))
    history.take(paged(of=incident("loss_plateau", Severity.WARNING)))

    assert silences.acknowledge(connection, "kl_blowup", NOW, "ana", "mine") == [
        "grpo-7b/kl_blowup#1"
    ]
    assert silences.acks(connection) == {
        "grpo-7b/kl_blowup#1": Ack("grpo-7b/kl_blowup#1", Severity.CRITICAL, NOW, "ana", "mine")
    }
    assert len(silences.acknowledge(connection, "", NOW, "bo", "")) == 2
    assert silences.give_back(connection, "loss_plateau") == 1
    assert silences.give_back(connection, "") == 1


def test_an_incident_is_acknowledged_as_loudly_as_its_case_was_told(connection):
    lead = incident("kl_blowup", Severity.WARNING)
    loud = replace(lead, severity=Severity.CRITICAL)
    history = History(connection)
    history.take(replace(paged(of=lead), told=(Page(Reason.OPENED, loud, 100, NOW),)))
    silences.acknowledge(connection, "", NOW, "ana", "")

    assert silences.acks(connection)[lead.name].severity is Severity.CRITICAL


def test_a_part_in_hand_is_not_the_case_once_that_is_louder():
    part = incident("reward_collapse", Severity.WARNING)
    lead = incident("kl_blowup")
    known = Quiet(acks={part.name: Ack(part.name, Severity.WARNING, NOW)})

    assert known.in_hand([replace(lead, severity=Severity.WARNING), part])
    assert not known.in_hand([lead, part])


def test_an_acknowledgement_ends_where_it_gets_louder():
    known = incident(severity=Severity.WARNING)
    quiet = Quiet(acks={known.name: Ack(known.name, Severity.WARNING, NOW)})

    assert quiet.ack_of(known) is not None
    assert quiet.ack_of(incident(severity=Severity.CRITICAL)) is None
    assert quiet.ack_of(incident(severity=Severity.WARNING, episode=2)) is None


@pytest.mark.parametrize(
    ("tier", "hushed", "critical"),
    [
        (Tier.PAGE, False, Severity.CRITICAL),
        (Tier.NOTIFY, False, Severity.WARNING),
        (Tier.QUIET, True, Severity.WARNING),
    ],
)
def test_only_a_run_of_tier_page_wakes_people(tier, hushed, critical):
    quiet = Quiet(tier)

    assert quiet.hushes("kl_blowup") is hushed
    assert quiet.severity(Severity.CRITICAL) is critical
    assert quiet.severity(Severity.INFO) is Severity.INFO


def test_of_several_silences_the_longest_is_told():
    quiet = Quiet(silences=(Silence("", NOW, NOW + 60), Silence("kl_blowup", NOW, NOW + 90)))

    assert quiet.silence_of("kl_blowup").ends == NOW + 90
    assert quiet.silence_of("loss_plateau").ends == NOW + 60
    assert quiet.at(NOW + 60).silence_of("loss_plateau") is None


def test_what_is_said_of_an_incident_is_plain():
    known = incident()
    quiet = Quiet(
        silences=(Silence("", NOW, NOW + 60, "bo"),),
        acks={known.name: Ack(known.name, known.severity, NOW, "ana", "mine")},
    )
    said = json.loads(json.dumps(quiet.said(known)))

    assert (said["silenced"]["by"], said["silenced"]["ends"]) == ("bo", NOW + 60)
    assert said["acknowledged"] == {"by": "ana", "why": "mine", "time": NOW}


def test_a_database_of_the_version_before_learns_of_silences(tmp_path):
    path = tmp_path / "sentinel.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute("pragma user_version=2")
    with closing(connect(path)) as connection:
        assert silences.lasting(connection, NOW) == ()
        assert connection.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)
