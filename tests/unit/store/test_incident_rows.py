"""Tests of the rows of the data set that are stored with an incident."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from support.notifications import make_notification

from sentinel.model.message import MAX_FACTS, build_message
from sentinel.model.notification import RunContext
from sentinel.store.cases import store_case
from sentinel.store.database import connect
from sentinel.store.incident_rows import (
    MAX_INCIDENTS,
    IncidentRows,
    RankRows,
    case_incidents,
    load_incident_rows,
    rows_text,
    store_incident_rows,
)

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as opened:
        yield opened


def test_all_rows_are_stored_with_their_losses(connection):
    ranks = [
        RankRows(3, 412, 5000, (*range(1000),), (*([0.5] * 1000),)),
        RankRows(0, 412, 2, (-1, 1 << 62), ()),
        RankRows(3, 411, 1, (7,), ()),
    ]
    store_incident_rows(connection, "run/loss_spike#1", IncidentRows(ranks, "some are missing"))
    store_incident_rows(connection, "run/nan_or_inf#1", IncidentRows(gap="none"))

    found = load_incident_rows(connection, ["run/nan_or_inf#1", "run/loss_spike#1", "run/x#1"])

    assert found == {
        "run/nan_or_inf#1": IncidentRows([], "none"),
        "run/loss_spike#1": IncidentRows(ranks, "some are missing"),
    }
    assert found["run/loss_spike#1"].of_step == ranks[:2]
    assert rows_text(connection, ["run/nan_or_inf#1", "run/loss_spike#1"]).startswith("Rows of")
    assert rows_text(connection, ["run/nan_or_inf#1"]) == ""


def test_the_rows_of_the_newest_incidents_are_kept(connection):
    for number in range(MAX_INCIDENTS + 3):
        rows = IncidentRows([RankRows(0, number, 1, (number,))])
        store_incident_rows(connection, f"run/loss_spike#{number}", rows)
    store_incident_rows(connection, f"run/loss_spike#{MAX_INCIDENTS}", rows)

    names = [f"run/loss_spike#{number}" for number in range(MAX_INCIDENTS + 3)]
    assert [*load_incident_rows(connection, names)] == names[3:]


def test_the_highest_losses_are_first_and_nan_before_all():
    rank = RankRows(0, 1, 7, range(7), (0.1, -INF, NAN, 0.3, INF, 0.2, 0.4))

    assert [row for row, _ in rank.top] == [2, 4, 6, 3, 5]
    as_json = json.loads(json.dumps(rank.to_dict(), allow_nan=False))
    assert as_json["losses"] == [0.1, None, "nan", 0.3, "inf", 0.2, 0.4]
    assert as_json["top"][0] == {"row": 2, "loss": "nan"}
    assert RankRows(0, 1, 1, (4,)).to_dict()["losses"] is None


def test_a_text_is_bounded():
    text = IncidentRows([RankRows(rank, 9, 5000, range(1000)) for rank in range(8)]).text
    assert text == (
        "Rows of step 9: 0, 1, 2, 3, 4, 5, 6, 7 and 4992 more on rank 0; "
        "0, 1, 2, 3, 4, 5, 6, 7 and 4992 more on rank 1; "
        "0, 1, 2, 3, 4, 5, 6, 7 and 4992 more on rank 2; and those of 5 further ranks."
    )
    measured = RankRows(1, 9, 3, (5, 6, 7), (0.25, 9.123456, 1.0))
    assert IncidentRows([measured]).text == (
        "Rows of step 9, those of the highest losses: "
        "6 (loss 9.123), 7 (loss 1), 5 (loss 0.25) on rank 1."
    )
    assert IncidentRows(gap="none").text == ""


def test_a_message_states_the_rows_while_the_case_is_open(connection):
    text = "Rows of step 9: 5 on rank 0."
    opened = replace(make_notification(), context=RunContext(rows=text))
    store_case(connection, opened)

    message = build_message(opened, None)

    assert message.facts[-1] == text
    assert len(message.facts) <= MAX_FACTS
    assert text not in build_message(make_notification(), None).facts
    assert case_incidents(connection, opened.incident.name) == [opened.incident.name]
    assert case_incidents(connection, "run/x#1") == []
