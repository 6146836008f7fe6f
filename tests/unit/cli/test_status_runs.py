"""`sentinel status` of past runs, of all runs, and again and again."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from rich.console import Console
from support.rank_processes import until
from support.run_databases import NOW, step_record, write_records
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.cli._run_table import read_rows, run_table
from sentinel.cli.main import app
from sentinel.model.record import Event
from sentinel.transport.paths import DATABASE_NAME

TIMEOUT_SECONDS = 240.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A home with a healthy run, one with a fault, and one that did not end."""
    home = tmp_path_factory.mktemp("home")
    write_run(home, run="healthy-1", steps=30)
    write_run(home, run="collapse-2", steps=240, fault_at=100, begin=1_760_001_000.0)
    write_run(home, run="cut-off-3", steps=20, outcome="", begin=1_760_002_000.0)
    return home


@pytest.fixture(autouse=True)
def home(stored, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored))


def status(*arguments):
    return CliRunner().invoke(app, ["status", *arguments])


def test_without_an_agent_the_newest_runs_are_named(stored):
    shown = status().stdout

    assert shown.startswith(f"No run has an agent under {stored}.\nThe newest 3 of 3 runs")
    assert "healthy-1" in shown


def test_a_past_run_is_read_from_its_database():
    result = status("healthy-1")
    lines = result.stdout.splitlines()

    assert result.exit_code == 0
    assert lines[0].startswith("healthy-1: finished at step 30 (ended ")
    assert lines[1].strip().startswith("trl, grpo")
    curves = [line for line in lines if "▁" in line]
    assert [line.split()[0] for line in curves][:3] == ["loss", "reward", "kl_ref"]


def test_trainings_of_one_run_have_a_gap_between_their_curves(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    path = tmp_path / "runs" / "folds" / DATABASE_NAME
    path.parent.mkdir(parents=True)
    records = []
    for fold in range(3):
        first = 100 * fold
        if fold:
            begin = {"event": Event.TRAINING, "time": NOW + first + 0.5}
            records.append(step_record(first, {"training_number": 1.0 + fold}, **begin))
        records += [step_record(first + at, {"loss": 100.0 - at}) for at in range(1, 100)]
    write_records(path, records)
    first, *lines = status("folds").stdout.splitlines()

    assert "at step 299 of training 3" in first
    (curve,) = [line for line in lines if line.strip().startswith("loss")]
    assert len(curve.split()) == 1 + 3 + 1
    assert all(part.startswith("█") for part in curve.split()[1:4])


def test_a_past_run_as_json():
    (line,) = status("collapse-2", "--json").stdout.splitlines()
    run = json.loads(line)

    assert (run["run"], run["state"], run["step"]) == ("collapse-2", "finished", 240)
    assert (run["is_live"], run["url"]) == (False, "")
    assert run["ended"] > run["started"]


def test_the_problems_of_a_past_run_are_shown():
    shown = status("collapse-2").stdout

    assert "critical" in shown.lower()
    assert "steps " in shown or "Since step" in shown


def test_a_run_that_was_cut_off_has_not_finished():
    assert status("cut-off-3").stdout.startswith("cut-off-3: unfinished at step 20")


def test_all_runs_are_listed_the_newest_first():
    lines = status("--all").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["cut-off-3", "collapse-2", "healthy-1"]
    assert lines[0].split()[2:4] == ["-", "unfinished"]


def test_all_runs_as_json_and_by_a_filter():
    rows = [json.loads(line) for line in status("--all", "--json").stdout.splitlines()]
    filtered = status("--filter", "state:unfinished").stdout.splitlines()

    assert [row["run"] for row in rows] == ["cut-off-3", "collapse-2", "healthy-1"]
    assert len(rows[1]["sparkline"]["values"]) > 10
    assert [line.split()[0] for line in filtered] == ["cut-off-3"]
    assert status("--filter", "no-such").stdout == "No run matches.\n"


def test_a_run_and_all_runs_exclude_each_other():
    result = status("healthy-1", "--all")

    assert (result.exit_code, "give a run, or --all" in result.stderr) == (2, True)


@pytest.mark.parametrize("width", [30, 40, 80, 100, 200])
def test_the_table_fits_every_terminal(width):
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None)
    console.print(run_table(read_rows(""), console))
    lines = output.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    assert any("collapse" in line for line in lines)
    assert len(lines) < 9
    assert ("Framework" in output.getvalue()) == (width >= 200)


def test_a_terminal_of_80_columns_says_what_is_wrong():
    """The problem has room before state, curve and host have any; a curve names its signal."""
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None)
    console.print(run_table(read_rows(""), console))
    (line,) = [line for line in output.getvalue().splitlines() if "collapse-2" in line]

    assert line.split()[:5] == ["collapse-2", "ended_badly", "Policy", "collapse,", "as"]
    assert "reward ▅" in status("--all").stdout


def test_a_watched_run_that_is_over_is_shown_once():
    result = status("healthy-1", "--watch", "--interval", "0.2")

    assert result.exit_code == 0
    assert result.stdout.count("healthy-1: finished") == 1


def watching(arguments, **settings):
    command = [sys.executable, "-m", "sentinel", "status", "--watch", "--interval", "0.2"]
    return subprocess.Popen([*command, *arguments], **settings)


def test_a_watch_of_a_pipe_prints_what_changed_and_ends_with_ctrl_c(tmp_path):
    output = tmp_path / "lines"
    with output.open("w") as file, watching(["--all", "--json"], stdout=file) as process:
        until(lambda: output.read_text().count("\n") >= 3, TIMEOUT_SECONDS, "the runs")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0

    # Nothing changed after the first look.
    assert len(output.read_text().splitlines()) == 3


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_watch_on_a_terminal_leaves_it_as_it_was(number, exit_status):
    main, terminal = pty.openpty()
    process = watching(["--all"], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"collapse-2" not in shown:
        shown += os.read(main, 65536)
    process.send_signal(number)
    with suppress(OSError):
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)

    assert process.wait(TIMEOUT_SECONDS) == exit_status
    # The cursor is back, and so is the screen of before.
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")
    assert b"Traceback" not in shown


def test_runs_of_an_earlier_version_do_not_delay_the_runs_that_are_shown(tmp_path, monkeypatch):
    """They have no summary; reading a thousand databases takes minutes."""
    for number in range(3):
        write_run(tmp_path, run=f"old-{number}", steps=5, begin=1_760_000_000.0 + number)
        os.utime(tmp_path / "runs" / f"old-{number}" / "sentinel.db", (1e9 + number,) * 2)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))

    assert sorted(row["run"] for row in read_rows("", max_completed=1) if row.get("host")) == [
        "old-2"
    ]
    assert len([row for row in read_rows("") if row.get("host")]) == 3
