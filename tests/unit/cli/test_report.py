"""`sentinel report` and `sentinel compare` on stored runs and on logs."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.insight_results import surface
from support.log_files import healthy_rows, jsonl, tensorboard
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.config.settings import load_replay_settings
from sentinel.store.artifact import save_artifact
from sentinel.web.logs.log_runs import LogRuns
from sentinel.web.report_page import read_plotly

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A home with a run that went wrong, and a healthy one with other settings."""
    folder = tmp_path_factory.mktemp("home")
    write_run(folder, run="sick", steps=200, fault_at=120)
    write_run(folder, run="well", steps=150, ranks=1, seed=2, metadata={"learning_rate": 5e-7})
    return folder


@pytest.fixture
def home(stored, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored))
    return stored


def sentinel(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def embedded(html):
    """The data inside a report."""
    (text,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', html)
    return json.loads(text)


def test_the_report_is_one_file_that_requests_nothing(tmp_path):
    path = tmp_path / "report.html"
    done = sentinel("report", "sick", "-o", path)

    assert done.exit_code == 0, done.output
    html = path.read_text()
    assert "default-src 'none'" in html
    library = read_plotly()
    assert library in html
    rest = html.replace(library, "")
    assert not re.search(r'(?:src|href)="(?!data:,|#)', rest)
    (run,) = embedded(html)["runs"]
    assert run["verdict"]["status"] == "ended_badly"
    assert run["verdict"]["last_good_checkpoint"]["step"] == 100
    assert run["answers"]["api/series"]["series"]["loss"]["x"][-1] == 200


def test_samples_and_charts_can_be_left_out(tmp_path):
    path = tmp_path / "report.html"
    done = sentinel("report", "sick", "--no-samples", "--no-charts", "-o", path)

    assert done.exit_code == 0, done.output
    html = path.read_text()
    assert "the fox" not in html
    assert len(html) < 2_000_000


@pytest.mark.parametrize("max_mb", [1, 5.5])
def test_the_size_of_the_file_can_be_limited(tmp_path, max_mb):
    path = tmp_path / "report.html"
    done = sentinel("report", "sick", "--max-mb", max_mb, "-o", path)

    assert done.exit_code == 0, done.output
    assert path.stat().st_size < max_mb * 1e6


def test_markdown_tells_what_went_wrong_and_what_to_do():
    done = sentinel("report", "sick", "--md")

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# Ended badly: `sick`\n\nPolicy collapse")
    assert "What to do: Stop the run" in done.stdout
    assert "| Loss | " in done.stdout


def test_json_has_the_verdict_results_and_cases():
    done = sentinel("report", "well", "--json")

    (run,) = json.loads(done.stdout)["runs"]
    assert run["summary"].startswith("The run finished at step 150; no problem was open. It ended")
    assert {"signal", "last", "best"} <= run["results"][0].keys()
    assert run["answers"]["api/cases"] == []


def test_the_texts_of_a_report_stay_true_as_time_goes_by():
    (run,) = json.loads(sentinel("report", "sick", "--json").stdout)["runs"]
    messages = [each["message"] for each in run["answers"]["api/cases"]]

    assert messages
    assert all("found at step" in each["since"] for each in messages)
    assert "ago" not in json.dumps(messages)
    assert "After the run" not in json.dumps(messages)


def test_several_runs_are_compared_in_the_report():
    report = json.loads(sentinel("report", "sick", "well", "--json").stdout)

    assert [run["name"] for run in report["comparison"]["runs"]] == ["sick", "well"]
    assert {"time", "tokens"} == report["comparison"]["other_axes"].keys()


def test_a_log_is_reported_like_a_run(tmp_path):
    log = jsonl(tmp_path, healthy_rows(1, 60))
    done = sentinel("report", log, "--json")

    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert run["answers"]["api/run"]["step"] == 60
    assert run["answers"]["api/series"]["series"]["loss"]["count"] == 60


def test_a_folder_of_logs_stands_for_all_of_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tensorboard(tmp_path / name, healthy_rows(1, 40))
    (tmp_path / "b" / "broken.csv").write_text("step,loss\n")
    done = sentinel("compare", tmp_path, "--json")

    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["runs"]) == 2


def test_the_path_of_a_database_names_its_run(home, tmp_path):
    copied = shutil.copytree(home / "runs" / "well", tmp_path / "copied")
    done = sentinel("report", copied, "--json")

    assert json.loads(done.stdout)["runs"][0]["name"] == "copied"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nothing"], "no run 'nothing'"),
        (["report", "well", "--md", "--json"], "one of --md, --json, --png and --figure"),
        (["report", "well", "-o", "/nowhere/report.html"], "cannot write /nowhere/report.html"),
        (["report", "{tmp}/empty"], "there is no log"),
        (["report", "{tmp}/bad.jsonl"], "cannot read"),
        (["compare", "well"], "at least two"),
        (["compare", "well", "sick", "--axis", "epochs"], "step, time, tokens"),
    ],
)
def test_what_cannot_be_reported_is_explained(arguments, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text("{}\n")
    done = sentinel(*(each.replace("{tmp}", str(tmp_path)) for each in arguments))

    assert done.exit_code == 2
    assert message in done.stderr


def test_without_a_browser_a_picture_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = sentinel("report", "well", "--png", "-o", tmp_path / "report.png")

    assert done.exit_code == 2
    assert "apt install chromium" in done.stderr


def test_the_comparison_is_printed_as_tables():
    done = sentinel("compare", "sick", "well")

    assert done.exit_code == 0, done.output
    for text in ("Runs", "Policy collapse", "learning_rate", "ended_badly", "Loss"):
        assert text in done.stdout


def test_the_comparison_states_where_the_last_run_departs(home, tmp_path):
    path = tmp_path / "compare.html"
    done = sentinel("compare", "well", "sick", "--json", "-o", path)
    changed = json.loads(done.stdout)["what_changed"]
    shown = " ".join(sentinel("compare", "well", "sick").stdout.split())

    assert changed["departures"][0]["step"] == pytest.approx(120, abs=15)
    names = [each["name"] for each in changed["differences"]]
    assert names == ["learning_rate", "max_steps", "world_size"]
    assert " ".join(changed["text"].split()) in shown
    assert "3 settings differ (learning_rate, max_steps, world_size)" in changed["conclusion"]
    assert embedded(path.read_text())["comparison"]["what_changed"]["text"] == changed["text"]


def test_the_comparison_has_the_value_at_the_last_common_point():
    done = sentinel("compare", "sick", "well", "--signal", "loss", "--json")
    (loss,) = json.loads(done.stdout)["metrics"]
    shown = sentinel("compare", "sick", "well", "--signal", "loss").stdout

    assert loss["common_x"] == 150
    assert "at the last common point" in shown
    assert f"{loss['values'][0]['at_common']:.4g}" in " ".join(shown.split())


def test_the_state_of_a_log_is_that_which_sentinel_serve_shows(tmp_path):
    rows = [{**row, "time": 1.7e9 + row["step"]} for row in healthy_rows(1)[:40]]
    rows[-1]["loss"] = float("nan")
    states = {}
    for name, age in (("growing", 0.0), ("left", 3600.0)):
        (tmp_path / name).mkdir()
        log = jsonl(tmp_path / name, rows)
        os.utime(log, (time.time() - age,) * 2)
        runs = LogRuns(log, load_replay_settings((), {}))
        runs.start()
        states[name] = [runs.view(log.stem).read_state()["state"]]
        runs.close()
        done = sentinel("report", log, "--json")
        (run,) = json.loads(done.stdout)["runs"]
        states[name].append(run["answers"]["api/run"]["state"])
        ended = run["answers"]["api/run"]["ended"]
        assert ended == rows[-1]["time"] or (name == "growing" and ended in {"nan", None})
        (loss,) = [each for each in run["results"] if each["signal"] == "loss"]
        assert (loss["last"], loss["bad_count"]) == ("nan", 1)

    assert states == {"growing": ["running"] * 2, "left": ["unfinished"] * 2}


def test_names_of_runs_and_settings_do_not_control_the_terminal(home, tmp_path):
    hostile = "a\x1b[2J[bold]b"
    write_run(tmp_path / "other", run="other", steps=20, metadata={hostile: "\x1b]0;mine\x07"})
    done = sentinel("compare", "well", tmp_path / "other/runs/other")

    assert done.exit_code == 0, done.output
    assert "\x1b[2J" not in done.stdout
    assert "[bold]" in done.stdout


def test_a_file_that_cannot_be_written_keeps_its_old_content(tmp_path, monkeypatch):
    path = tmp_path / "report.md"
    path.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=OSError(28, "No space left")))
    done = sentinel("report", "well", "--md", "-o", path)

    assert done.exit_code == 2
    assert path.read_text() == "old"


def test_a_comparison_says_what_results_of_insight_say(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    for run in ("first", "second"):
        write_run(tmp_path, run=run, steps=3, ranks=1, sample_every=0, node_every=0)
    save_artifact(tmp_path / "runs" / "first", surface(3, size=7))

    done = sentinel("compare", "first", "second")
    shown = json.loads(sentinel("compare", "first", "second", "--json").stdout)

    assert "first: The loss at the weights is" in done.stdout
    assert "second: " not in done.stdout
    assert [len(each) for each in shown["insight"]["results"]] == [1, 0]
