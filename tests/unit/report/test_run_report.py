"""Results of insight in reports: as much as fits, as texts, and never damaged files."""

from __future__ import annotations

import json

import pytest
from support.insight_results import layers, line, surface, trajectory
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.report.comparison import ComparedRun
from sentinel.report.markdown import markdown_report
from sentinel.report.run_report import collect_report
from sentinel.store.artifact import save_artifact
from sentinel.store.result_text import layers_text, result_text
from sentinel.store.run_reader import RunReader


class LayersReader(RunReader):
    """A reader of a run with statistics of layers."""

    def has_layers(self):
        return True

    def layers(self, statistic, *, columns=240, start=None, end=None):
        return layers(columns) | {"statistic": statistic}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    database = write_run(tmp_path_factory.mktemp("home"), run="r", steps=20, sample_every=0)
    for step in (10, 20):
        save_artifact(database.parent, surface(step, size=31))
    save_artifact(database.parent, line())
    save_artifact(database.parent, trajectory(projection={"points": "x" * 1000}))
    (database.parent / "insight" / "bad.json").write_text('{"version":1,"kind":"a",\n"data":{')
    return database


def collect(database, reader=RunReader, **options):
    state = stored_state(database, "r")
    run = ComparedRun("r", reader(database), state, database.parent)
    return collect_report([run], now=1e9, **options)


def test_a_report_has_the_results_without_what_no_picture_shows(database):
    report = collect(database, LayersReader)
    answers = report["runs"][0]["answers"]

    headers = answers["api/insight"]
    assert [each["id"] for each in headers] == [
        "loss_surface-10", "loss_surface-20", "loss_surface-200", "trajectory-grpo-7b",
    ]  # fmt: skip
    found = [answers[f"api/insight/{each['id']}"] for each in headers]
    assert len(found[0]["data"]["loss"]) == 31
    assert "projection" not in found[3]["data"]
    assert answers["api/run"]["insight"] == "stored"
    assert answers["api/run"]["layers"] is True
    assert len(answers["api/layers?statistic=layer_grad_cosine"]["x"]) == 160
    json.dumps(report, allow_nan=False)


def test_the_newest_results_stay_where_not_all_fit(database):
    report = collect(database, max_bytes=90_000, include_samples=False)

    headers = report["runs"][0]["answers"]["api/insight"]
    # Of the surfaces without a name the line is the newest, and the one of step 10 the oldest.
    found = {each["id"] for each in headers}
    assert {"loss_surface-200", "trajectory-grpo-7b"} <= found
    assert "loss_surface-10" not in found


def test_a_run_without_results_has_none_in_its_report(tmp_path):
    report = collect(write_run(tmp_path, run="r", steps=5, sample_every=0))

    answers = report["runs"][0]["answers"]
    assert not [path for path in answers if "insight" in path or "layers" in path]
    assert answers["api/run"]["insight"] == ""
    assert "## Insight" not in markdown_report(report)


def test_markdown_has_a_row_for_each_result(database):
    text = markdown_report(collect(database, LayersReader))

    assert "| Loss surface |  | 20 | The loss at the weights is 1.497; the lowest one" in text
    assert "0.96 times the limit of stability." in text
    assert "| Trajectory of the weights | grpo-7b | - | At step 398, the weights are" in text
    assert " in layers.3.mlp. Zero in layers.0.mlp. |" in text


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("loss_surface", {"x": [0, 1], "y": [], "loss": [[None, None]]}, "No evaluation"),
        ("loss_surface", {"x": [0, 1], "y": [], "loss": [[2, 1.5]]}, "is 1.5 at 1."),
        (
            "importance",
            {"runs": 30, "outcome": "loss", "settings": [{"name": "lr", "importance": 0.6}]},
            "Over 30 runs, loss depends most on lr (0.6).",
        ),
        ("importance", {"runs": 3, "outcome": "loss", "settings": []}, "3 runs are too few"),
        ("gradient_flow", {}, ""),
    ],
)
def test_a_result_in_a_sentence(kind, data, text):
    assert text in result_text(kind, data)


@pytest.mark.parametrize("kind", ["loss_surface", "trajectory", "importance"])
@pytest.mark.parametrize(
    "data",
    [{}, {"x": 1, "y": 2, "loss": 3}, {"runs": "abc"}, {"runs": [{}]}, {"settings": 7},
     {"x": ["a"], "y": [], "loss": [["b"]], "center": 4}, {"settings": [None], "runs": 1}],
)  # fmt: skip
def test_damaged_data_have_no_sentence(kind, data):
    assert isinstance(result_text(kind, data), str)


@pytest.mark.parametrize("grid", [{}, {"layers": ["a"], "values": [], "x": [1]}, layers(0)])
def test_no_layers_have_no_sentence(grid):
    assert layers_text(grid) == ""
