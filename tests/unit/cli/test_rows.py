"""`sentinel rows` for a run that is over."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from support.notifications import make_notification
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.store.cases import store_case
from sentinel.store.database import connect
from sentinel.store.incident_rows import IncidentRows, RankRows, store_incident_rows

RUN = "sft-1"
SPIKE = make_notification(run=RUN, detector="loss_spike")
NAN = make_notification(run=RUN, detector="nan_or_inf")
SLOW = make_notification(run=RUN, detector="reward_stalled")
ROWS = IncidentRows(
    [RankRows(3, 412, 1500, (88, 1203), (0.25, 9.5)), RankRows(3, 411, 1, (7,))],
    "those of ranks on other nodes are not read",
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    with closing(connect(folder / "sentinel.db")) as connection:
        for each in (SPIKE, NAN, SLOW):
            store_case(connection, each)
        store_incident_rows(connection, SPIKE.incident.name, ROWS)
        store_incident_rows(connection, NAN.incident.name, IncidentRows(gap="it is a stream"))


def rows(*arguments):
    return CliRunner().invoke(app, ["rows", *arguments])


def test_the_rows_of_a_case_are_printed():
    shown = rows(SPIKE.incident.name)
    assert shown.exit_code == 0
    assert shown.stdout == (
        "sft-1/loss_spike#1: rows of step 412\n"
        "\n"
        "step 412, rank 3: 1500 rows, of which 1498 are not stored\n"
        "  row 1203: loss 9.5\n"
        "  row 88: loss 0.25\n"
        "  88 1203\n"
        "\n"
        "step 411, rank 3: 1 row\n"
        "  7\n"
        "\n"
        "Further rows are missing: those of ranks on other nodes are not read.\n"
    )


def test_the_rows_of_a_case_as_json():
    lines = rows("loss_spike#1", "--run", "sft", "--json").stdout.splitlines()
    first, second, gap = map(json.loads, lines)
    assert (first["case"], first["rank"], first["rows"]) == (SPIKE.incident.name, 3, [88, 1203])
    assert first["top"] == [{"row": 1203, "loss": 9.5}, {"row": 88, "loss": 0.25}]
    assert (second["step"], second["losses"]) == (411, None)
    assert gap["gap"] == ROWS.gap


def test_a_case_without_rows_states_why():
    assert (
        rows("nan_or_inf#1", "--run", RUN).stdout
        == "sft-1/nan_or_inf#1 has no rows: it is a stream.\n"
    )
    assert json.loads(rows(f"{RUN}/nan_or_inf#1", "--json").stdout)["gap"] == "it is a stream"
    assert "no incident of the case is a spike" in rows(f"{RUN}/reward_stalled#1").stdout
    assert json.loads(rows(f"{RUN}/reward_stalled#1", "--json").stdout)["incident"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["los_spike#1", "--run", RUN], "Did you mean 'loss_spike#1'"),
        (["loss_spike#1"], "give --run RUN"),
        (["sft-9/loss_spike#1"], "sft-9"),
    ],
)
def test_an_unknown_case_or_run_is_named_with_a_remedy(arguments, message):
    result = rows(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
