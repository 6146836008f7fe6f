"""Runs for the importance of settings: from tables, logs, folders and the home directory."""

from __future__ import annotations

import json
from math import isnan, nan

import pytest
from support.run_databases import step_record, write_records

from sentinel.insight.importance.run_collection import collect_runs
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.store.run_summary import SUMMARY_NAME
from sentinel.transport.paths import DATABASE_NAME, home_dir

ROWS = [
    {"name": "a", "lr": 0.1, "loss": 2.0, "reward": 1.0},
    {"name": "b", "lr": 0.2, "loss": float("nan")},
    {"name": "c", "lr": 0.3},
]


def by_name(collection):
    return {run["name"]: run for run in collection.runs}


def table_files(folder):
    (folder / "t.json").write_text(json.dumps(ROWS))
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "t.csv").write_text("name,lr,loss,reward\na,0.1,2.0,1.0\nb,0.2,nan,\nc,0.3,,\n")
    (folder / "o.json").write_text(json.dumps({"runs": ROWS}))
    return [folder / name for name in ("t.json", "t.jsonl", "t.csv", "o.json")]


def test_a_table_has_a_run_in_each_row(tmp_path):
    for path in table_files(tmp_path):
        found = collect_runs([path], "loss")
        runs = by_name(found)

        assert {name: float(run["settings"]["lr"]) for name, run in runs.items()} == {
            "a": 0.1,
            "b": 0.2,
            "c": 0.3,
        }
        assert runs["a"]["outcome"] == 2.0
        assert isnan(runs["b"]["outcome"])
        assert runs["c"]["outcome"] is None
        # The reward is another outcome, and no setting.
        assert set(runs["a"]["settings"]) == {"lr"}


def test_settings_may_be_an_object_of_the_row(tmp_path):
    path = tmp_path / "sweep.jsonl"
    rows = [{"id": 1, "config": {"lr": 0.1}, "eval_loss": 2, "state": "crashed", "step": 9}]
    path.write_text("\n".join(map(json.dumps, rows)))

    (run,) = collect_runs([path]).runs

    assert run == {"name": "1", "settings": {"lr": 0.1}, "outcome": 2.0, "failed": True}


def log(path, values, **args):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "train/loss": value} for step, value in enumerate(values, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path.parent / "args.json").write_text(json.dumps(args))


@pytest.mark.parametrize(
    ("statistic", "expected"), [("last", 5.0), ("best", 1.0), ("mean", (9.0 + 3.0 + 5.0) / 3)]
)
def test_the_outcome_is_the_last_value_the_best_or_the_mean_of_the_end(
    tmp_path, statistic, expected
):
    log(tmp_path / "one" / "log.jsonl", [4.0, 1.0, *[9.0] * 17, 3.0, 5.0], lr=0.1, depth=3)

    (run,) = collect_runs([tmp_path], "loss", statistic=statistic).runs

    assert run["outcome"] == pytest.approx(expected)
    assert run["settings"] == {"lr": 0.1, "depth": 3}


@pytest.mark.parametrize(
    ("values", "statistic", "is_nan"),
    [
        ([2.0, 1.0, nan], "last", True),
        ([2.0, nan, 1.0], "last", False),
        ([nan, nan], "best", True),
        ([2.0, nan, nan], "best", False),
        ([2.0] * 19 + [nan, 2.0], "mean", True),
        ([nan] + [2.0] * 20, "mean", False),
    ],
)
def test_a_run_whose_outcome_is_not_finite_failed(tmp_path, values, statistic, is_nan):
    log(tmp_path / "log.jsonl", values)

    (run,) = collect_runs([tmp_path / "log.jsonl"], "loss", statistic=statistic).runs

    assert isnan(run["outcome"]) is is_nan


def store(run, losses, state="finished", **settings):
    folder = home_dir() / "runs" / run
    folder.mkdir(parents=True)
    texts = {name: value for name, value in settings.items() if isinstance(value, str)}
    numbers = {name: value for name, value in settings.items() if name not in texts}
    start = Record(run, WHOLE_RUN, 0, 1.7e9, Event.START, numbers, texts)
    steps = [step_record(step, {"loss": loss}) for step, loss in enumerate(losses, 1)]
    write_records(folder / DATABASE_NAME, [start, *steps])
    (folder / SUMMARY_NAME).write_text(json.dumps({"run": run, "state": state}))


def test_without_sources_the_runs_of_the_home_directory_are_read():
    store("good", [3.0, 2.0, 1.5], lr=0.1, optimizer="adamw", pid=7.0)
    store("nan", [3.0, nan], lr=9.0, optimizer="sgd")
    store("dead", [3.0, 2.5], "died", lr=0.2, optimizer="sgd")
    store("live", [3.0, 2.0], "running", lr=0.3, optimizer="sgd")

    found = collect_runs()
    runs = by_name(found)

    assert found.outcome == "loss"
    assert runs["good"]["outcome"] == 1.5
    assert runs["good"]["settings"]["optimizer"] == "adamw"
    assert isnan(runs["nan"]["outcome"])
    assert [name for name, run in runs.items() if run["failed"]] == ["dead"]
    assert found.notes == ["1 of 4 runs have not ended: their values so far count."]
    assert [run["name"] for run in collect_runs(["good", "live"], "train/loss").runs] == [
        "good",
        "live",
    ]
    assert len(collect_runs([home_dir()]).runs) == 4


def test_what_cannot_be_read_is_stated_and_the_rest_counts(tmp_path):
    log(tmp_path / "a" / "log.jsonl", [1.0])
    (tmp_path / "b.json").write_text("{")

    found = collect_runs([tmp_path])

    assert len(found.runs) == 1
    assert "b.json" in found.notes[0]


@pytest.mark.parametrize(
    ("source", "outcome", "message"),
    [
        ("nothing", "", "no run 'nothing' under"),
        ("t.csv", "accuracy", "no run has accuracy: name the outcome. The runs have: "),
        ("u.csv", "", "no run has a reward or a loss: name the outcome. The runs have: lr, mark"),
        ("e.csv", "", "there are no runs in the given files"),
        ("d.json", "", "nested too deeply"),
    ],
)
def test_an_input_without_runs_is_an_error_that_names_what_there_is(
    tmp_path, monkeypatch, source, outcome, message
):
    monkeypatch.chdir(tmp_path)
    table_files(tmp_path)
    (tmp_path / "u.csv").write_text("lr,mark\n1,2\n2,3\n")
    (tmp_path / "e.csv").write_text("")
    (tmp_path / "d.json").write_text("[" * 100_000)

    with pytest.raises(ValueError, match=message):
        collect_runs([source], outcome)


def test_an_empty_home_is_an_error():
    with pytest.raises(ValueError, match="there are no runs under"):
        collect_runs()
