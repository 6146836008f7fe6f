"""Tests of silences and acknowledgements."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW, incident_result, make_incident

from sentinel.model.finding import Severity
from sentinel.model.incident import RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.silences import Acknowledgement, Silence, Suppression


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def test_a_silence_is_active_until_its_end(connection):
    first = silences.add_silence(connection, Silence("kl_blowup", NOW, NOW + 60, "ana", "known"))
    second = silences.add_silence(connection, Silence("", NOW, NOW + 3600))

    assert silences.active_silences(connection, NOW + 59) == (first, second)
    assert silences.active_silences(connection, NOW + 60) == (second,)
    assert first.silence_id != second.silence_id


def test_silences_of_one_detector_are_expired_separately(connection):
    for detector in ("kl_blowup", "kl_blowup", "loss_plateau"):
        silences.add_silence(connection, Silence(detector, NOW, NOW + 60))

    assert silences.expire_silences(connection, "kl_blowup", NOW + 1) == 2
    assert [each.detector for each in silences.active_silences(connection, NOW + 1)] == [
        "loss_plateau"
    ]
    assert silences.expire_silences(connection, "", NOW + 1) == 1


def test_firing_incidents_are_acknowledged_and_acks_withdrawn(connection):
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


def test_an_incident_is_acknowledged_at_the_severity_of_its_case(connection):
    lead = make_incident("kl_blowup", Severity.WARNING)
    critical = replace(lead, severity=Severity.CRITICAL)
    history = History(connection)
    history.update(
        replace(
            incident_result(of=lead),
            case_notifications=(Notification(NotificationReason.OPENED, critical, 100, NOW),),
        )
    )
    silences.acknowledge(connection, "", NOW, "ana", "")

    assert silences.load_acks(connection)[lead.name].severity is Severity.CRITICAL


def test_an_ack_of_a_part_does_not_cover_a_case_of_higher_severity():
    member = make_incident("reward_collapse", Severity.WARNING)
    lead = make_incident("kl_blowup")
    suppression = Suppression(
        acks={member.name: Acknowledgement(member.name, Severity.WARNING, NOW)}
    )

    assert suppression.is_acknowledged([replace(lead, severity=Severity.WARNING), member])
    assert not suppression.is_acknowledged([lead, member])


def test_an_ack_ends_when_the_severity_rises():
    incident = make_incident(severity=Severity.WARNING)
    suppression = Suppression(
        acks={incident.name: Acknowledgement(incident.name, Severity.WARNING, NOW)}
    )

    assert suppression.acknowledgement(incident) is not None
    assert suppression.acknowledgement(make_incident(severity=Severity.CRITICAL)) is None
    assert suppression.acknowledgement(make_incident(severity=Severity.WARNING, episode=2)) is None


@pytest.mark.parametrize(
    ("tier", "is_suppressed", "critical"),
    [
        (RunTier.PAGE, False, Severity.CRITICAL),
        (RunTier.NOTIFY, False, Severity.WARNING),
        (RunTier.QUIET, True, Severity.WARNING),
    ],
)
def test_only_tier_page_sends_critical_notifications(tier, is_suppressed, critical):
    suppression = Suppression(tier)

    assert suppression.is_suppressed("kl_blowup") is is_suppressed
    assert suppression.notified_severity(Severity.CRITICAL) is critical
    assert suppression.notified_severity(Severity.INFO) is Severity.INFO


def test_the_silence_that_ends_last_is_shown():
    suppression = Suppression(
        silences=(Silence("", NOW, NOW + 60), Silence("kl_blowup", NOW, NOW + 90))
    )

    assert suppression.longest_silence("kl_blowup").ends_at == NOW + 90
    assert suppression.longest_silence("loss_plateau").ends_at == NOW + 60
    assert suppression.without_expired(NOW + 60).longest_silence("loss_plateau") is None


def test_suppression_fields_are_json():
    incident = make_incident()
    suppression = Suppression(
        silences=(Silence("", NOW, NOW + 60, "bo"),),
        acks={incident.name: Acknowledgement(incident.name, incident.severity, NOW, "ana", "mine")},
    )
    fields = json.loads(json.dumps(suppression.suppression_fields(incident)))

    assert (fields["silenced"]["author"], fields["silenced"]["ends_at"]) == ("bo", NOW + 60)
    assert fields["acknowledged"] == {"author": "ana", "comment": "mine", "time": NOW}
