"""`sentinel backtest`: runs are replayed with other settings, and some are recommended."""

from __future__ import annotations

import json
import os
import time
import tomllib
from contextlib import closing
from hashlib import sha256
from random import Random

import pytest
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.backtest import backtest
from sentinel.cli._backtest_tables import print_backtest
from sentinel.cli.main import app
from sentinel.config.plugins import load_classes
from sentinel.pipeline.parallel import ProcessKilledError
from sentinel.store.cases import all_cases
from sentinel.store.database import connect
from sentinel.store.feedback import Feedback, store_feedback
from sentinel.web.backtest_page import render_backtest_page

BEGIN = 1.76e9
STEP_SECONDS = 36_000.0
LENGTH, ONSET = 100, 60
LIMIT = "detectors.kl_blowup.limit"
SENSITIVE = f"{LIMIT}=0.05"
"""A limit that the KL of every run exceeds."""
GRID = f"{SENSITIVE},0.3"
HEALTHY = ("--healthy", "good-*")
DAYS = (LENGTH - 1) * STEP_SECONDS / 86_400
"""How long each run trains."""


def rows(seed, *, is_faulty=False):
    """A run whose loss falls and whose KL grows to 0.08, and from ONSET on by 8 % a step."""
    rng = Random(seed)
    for step in range(1, LENGTH + 1):
        kl = 0.08 * min(1, step / 50) * rng.uniform(0.9, 1.1)
        if is_faulty and step > ONSET:
            kl *= min(100.0, 1.08 ** (step - ONSET))
        yield {
            "step": step,
            "time": BEGIN + STEP_SECONDS * step,
            "loss": 3 / step**0.3 * rng.uniform(0.9, 1.1),
            "kl": kl,
        }


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A folder with three healthy logs, one with a KL blow-up, and one that is damaged."""
    folder = tmp_path_factory.mktemp("logs")
    for name, seed in {"good-1": 1, "good-2": 2, "good-3": 3, "bad": 4}.items():
        lines = [json.dumps(row) for row in rows(seed, is_faulty=name == "bad")]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "damaged.jsonl.gz").write_bytes(b"\x1f\x8b" + b"x" * 100)
    return folder


@pytest.fixture(scope="module")
def found(logs):
    """What it finds with a limit that is too low and with one that is better than the default."""
    return backtest_json(logs, "--grid", GRID, *HEALTHY, "--budget", "0.05")


@pytest.fixture(scope="module")
def stored_home(tmp_path_factory):
    """A home with a healthy run, one with a fault, one that did not end and a damaged one."""
    home = tmp_path_factory.mktemp("home")
    useful = Feedback("useful", time.time())
    with closing(connect(write_run(home, run="kl-1", steps=110, fault_at=60, ranks=1))) as database:
        for case in all_cases(database, None, print):
            store_feedback(database, case["name"], useful)
    for run, outcome in {"ok-1": "finished", "open-1": "", "broken-1": "finished"}.items():
        database = write_run(home, run=run, steps=30, ranks=1, outcome=outcome)
    database.write_bytes(database.read_bytes()[:100] + b"x" * 5000)
    ended = time.time() - 7200
    for path in (home / "runs").glob("*/**/*"):
        os.utime(path, (ended, ended))
    for directory in (home / "runs").iterdir():
        if directory.name != "open-1":
            (directory / "outcome.json").write_text("{}")
            os.utime(directory / "outcome.json", (ended, ended))
        os.utime(directory, (ended, ended))
    return home


def run_backtest(*arguments):
    return CliRunner().invoke(app, ["backtest", *map(str, arguments), "--jobs", "1"])


def backtest_json(*arguments):
    result = run_backtest(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def contents(folder):
    return {
        path: sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("**/*")
        if path.is_file()
    }


def test_more_sensitive_settings_send_more_in_healthy_runs(found):
    current, sensitive, better = found["settings"]

    assert [each["false"]["count"] for each in found["settings"]] == [0, 3, 0]
    assert [current["name"], current["found"], current["faults"]] == ["current settings", 1, 1]
    assert better["per_run"] == pytest.approx(better["notifications"] / 4)
    assert better["per_run_day"] == pytest.approx(better["notifications"] / (4 * DAYS))
    assert sensitive["false"]["per_run_day"] == pytest.approx(1 / DAYS)
    assert {each["name"] for each in found["runs"]} == {"good-1", "good-2", "good-3", "bad"}
    assert [each["name"] for each in found["skipped"]] == ["damaged"]


def test_the_incidents_that_appear_and_move_are_listed_with_their_delay(found):
    changes = [each for each in found["changes"] if each["settings"] == SENSITIVE]
    appeared = [
        (each["run"], each["incident"]["detector"])
        for each in changes
        if each["change"] == "appeared"
    ]
    (moved,) = (each for each in changes if each["run"] == "bad" and each["change"] == "changed")

    assert {(f"good-{n}", "kl_blowup") for n in (1, 2, 3)} <= {*appeared}
    assert moved["delay"] == moved["incident"]["opened_step"] - moved["before"]["opened_step"] < 0


def test_from_enough_days_it_recommends_settings_within_the_budget(found):
    made = found["recommendation"]

    assert made["toml"] == "[detectors.kl_blowup]\nlimit = 0.3"
    assert tomllib.loads(made["toml"]) == made["assignments"]
    assert (made["false"]["count"], made["false"]["run_days"]) == (0, pytest.approx(3 * DAYS))
    assert (made["left_out"]["found"], made["left_out"]["lost"]) == (1, [])
    assert made["left_out"]["false"]["count"] == 0


def test_the_tables_show_the_recommendation_and_what_is_left_out(found, capsys):
    print_backtest(found)
    shown = capsys.readouterr().out

    assert "\n[detectors.kl_blowup]\nlimit = 0.3\n" in shown
    assert "damaged is left out" in shown
    assert "Incidents that change with kl_blowup.limit=0.3" in shown
    assert "good-1" not in shown


def test_the_page_has_every_row_and_the_recommendation(logs, tmp_path):
    path = tmp_path / "backtest.html"
    options = ["--grid", GRID, *HEALTHY, "--budget", "0.05", "--output", path]
    found = backtest_json(logs, *options)
    page = path.read_text()

    assert all(f"<td>{name}</td>" in page for name in ("bad", "kl_blowup"))
    assert "[detectors.kl_blowup]\nlimit = 0.3</pre>" in page
    assert "damaged is left out" in page
    assert page.count("<tr>") >= 3 + len(found["settings"])
    assert "<script" not in page


def test_texts_of_runs_cannot_leave_the_page(found):
    hostile = "<script>alert(1)</script>\u202e"
    runs = [{**run, "name": hostile, "notes": [hostile]} for run in found["runs"]]
    changes = [{**each, "run": hostile} for each in found["changes"]]
    page = render_backtest_page({**found, "runs": runs, "changes": changes})

    assert "<script" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3


def test_a_page_that_cannot_be_written_is_an_error(logs, tmp_path):
    result = run_backtest(logs, "--output", tmp_path / "none" / "backtest.html")

    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_settings_that_the_recommendation_replaces_are_named_with_their_source(
    logs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    variable = "SENTINEL_DETECTORS__KL_BLOWUP__LIMIT"
    monkeypatch.setenv(variable, "0.05")
    result = run_backtest(logs, "--set", f"{LIMIT}=0.3", *HEALTHY, "--budget", "0.05")
    shown = " ".join(result.stdout.split())

    assert f"Add to {tmp_path / 'sentinel.toml'}:" in result.stdout.replace("\n", "")
    assert f"Remove what it replaces: {LIMIT} ({variable})." in shown


def test_of_many_runs_those_that_are_not_shown_are_counted_by_their_change(found, capsys):
    (bad,) = (run for run in found["runs"] if run["name"] == "bad")
    now = bad["notifications"][0]
    same = {**bad, "notifications": [now, now, now]}
    changed = {**bad, "notifications": [now, [], []]}
    without = {**bad, "notifications": [[], [], []]}
    many = {**found, "runs": [changed] * 25 + [same] * 3 + [without] * 2}
    print_backtest(many)
    shown = " ".join(capsys.readouterr().out.split())

    assert "5 more with a change, 3 more unchanged, 2 more without a notification" in shown


def test_without_a_notification_no_table_of_runs_is_shown_and_notes_are_bounded(logs, capsys):
    runs = [logs / "good-1.jsonl", logs / "good-2.jsonl"]
    found = backtest_json(*runs, "--set", f"{LIMIT}=0.5")
    (found["runs"][0]["notes"]) += [f"note {number}" for number in range(25)]
    print_backtest(found)
    shown = capsys.readouterr().out

    assert "No run of 2 has a notification." in shown
    assert "Notifications of runs" not in shown
    assert ("note 19" in shown, "note 20" in shown) == (True, False)
    assert "5 more notes are in the output of --json" in shown


def test_from_too_few_days_it_states_how_many_runs_it_needs(logs):
    options = [logs / "good-1.jsonl", logs / "good-2.jsonl", "--set", f"{LIMIT}=0.5", *HEALTHY]
    result = run_backtest(*options, "--budget", "0.01")

    assert result.exit_code == 0
    assert "No recommendation. Too few runs: with 0 false notifications of 2" in result.stdout
    assert "300 days of training are needed, about 8 such runs" in " ".join(result.stdout.split())


def test_what_a_detector_found_goes_without_it(logs):
    found = backtest_json(logs / "bad.jsonl", "--set", "disable=kl_blowup")

    assert ("gone", "kl_blowup") in {
        (each["change"], each["incident"]["detector"]) for each in found["changes"]
    }


def test_the_same_settings_change_nothing(logs):
    found = backtest_json(logs / "good-1.jsonl", "--set", f"{LIMIT}=1.0")

    assert (len(found["settings"]), found["changes"], found["recommendation"]) == (1, [], None)


def test_the_duration_of_logs_without_times_can_be_given(tmp_path):
    for seed in (1, 2):
        untimed = [{**row, "time": 0} for row in rows(seed)]
        (tmp_path / f"run-{seed}.jsonl").write_text("\n".join(map(json.dumps, untimed)))
    options = [tmp_path, "--set", f"{LIMIT}=2", "--healthy", "*"]
    unknown = backtest_json(*options)
    known = backtest_json(*options, "--step-seconds", "86400")

    assert unknown["settings"][0]["per_run_day"] is None
    assert "--step-seconds" in unknown["recommendation"]["reason"]
    assert known["settings"][0]["run_days"] == 2 * (LENGTH - 1)
    assert known["recommendation"]["settings"] is not None


def test_stored_runs_that_ended_are_replayed_and_nothing_is_changed(stored_home, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored_home))
    before = contents(stored_home)
    found = backtest_json("--set", "disable=kl_blowup", "--healthy", "ok-*")
    skipped = {each["name"]: each["reason"] for each in found["skipped"]}

    assert {each["name"] for each in found["runs"]} == {"ok-1", "kl-1"}
    assert skipped["open-1"] == "it may go on: it has no outcome"
    assert "broken-1" in skipped
    assert {each["run"] for each in found["changes"]} == {"kl-1"}
    assert [each["false"]["count"] for each in found["settings"]] == [0, 0]
    assert contents(stored_home) == before


def test_a_run_that_was_marked_a_moment_ago_is_replayed(stored_home, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored_home))
    database = stored_home / "runs" / "kl-1" / "sentinel.db"
    former = database.stat()
    os.utime(database)
    found = backtest_json()
    os.utime(database, ns=(former.st_atime_ns, former.st_mtime_ns))

    assert {each["name"] for each in found["runs"]} == {"ok-1", "kl-1"}


def test_what_people_marked_decides_what_is_false_and_what_is_to_be_found(
    stored_home, monkeypatch, capsys
):
    monkeypatch.setenv("SENTINEL_HOME", str(stored_home))
    found = backtest_json("kl-1", "--set", f"disable={','.join(load_classes('detectors'))}")
    (run,) = found["runs"]
    marks = found["marks"]

    assert (run["is_judged"], run["is_healthy"]) == (True, False)
    assert marks
    assert {each["mark"] for each in marks} == {"useful"}
    current, other = found["settings"]
    assert (current["found"], current["faults"]) == (len(marks), len(marks))
    assert current["false"]["count"] == 0
    assert (other["found"], other["faults"]) == (0, len(marks))
    assert all(
        before is not None and after is None for before, after in (each["steps"] for each in marks)
    )
    print_backtest(found)
    assert "Marked cases" in capsys.readouterr().out


def test_a_run_is_named_by_its_id_and_a_home_by_its_folder(stored_home, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored_home))
    one = backtest_json("ok-1", stored_home / "runs" / "ok-1")
    all_runs = backtest_json(stored_home)

    assert [each["name"] for each in one["runs"]] == ["ok-1"]
    assert {each["name"] for each in all_runs["runs"]} == {"ok-1", "kl-1", "open-1"}


def test_several_processes_find_what_one_does(logs):
    arguments = ["backtest", str(logs / "bad.jsonl"), "--set", SENSITIVE, "--json"]
    one, two = (CliRunner().invoke(app, [*arguments, "--jobs", jobs]).stdout for jobs in "12")

    assert json.loads(one)["changes"]
    assert one == two


def test_a_run_whose_process_is_killed_is_left_out(logs, monkeypatch):
    def answers(function, tasks, _processes):
        for task in tasks:
            is_killed = task.run.name == "bad" and task.settings.disable
            yield ProcessKilledError() if is_killed else function(task)

    monkeypatch.setattr(backtest, "map_in_processes", answers)
    found = backtest_json(logs, "--set", "disable=loss_spike")
    reasons = {each["name"]: each["reason"] for each in found["skipped"]}

    assert {each["name"] for each in found["runs"]} == {"good-1", "good-2", "good-3"}
    assert reasons["bad"] == "its process was killed, perhaps for its memory"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", f"{LIMIT}t=1"], 'Did you mean "limit"?'),
        (["--grid", f"{LIMIT}=x"], "(--grid): the string given is wrong"),
        (["--healthy", "god-1"], "--healthy: 'god-1' matches none of the runs. Did you mean"),
        (["--budget", "0"], "--budget: give a number above 0"),
        (["--budget", "nan"], "--budget: give a number above 0"),
        (["nosuch"], "no run 'nosuch'"),
    ],
)
def test_an_invalid_option_is_one_line_and_exit_2(logs, options, expected):
    result = run_backtest(logs, *options)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("sentinel backtest: ")
    assert expected in line


def test_nothing_that_can_be_replayed_is_exit_2(logs, tmp_path):
    for arguments in ([logs / "damaged.jsonl.gz"], [tmp_path], [tmp_path, *HEALTHY]):
        result = run_backtest(*arguments)

        assert result.exit_code == 2
        assert "none of the given runs can be replayed" in result.stderr
