"""`sentinel samples`: the model's words on a terminal, which they must not command."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from unicodedata import category

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.cli.samples import escape_invisible
from sentinel.model.record import Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import SCHEMA_VERSION, connect
from sentinel.store.samples import SampleStore
from sentinel.transport.paths import home_dir, run_dir

NASTY = (
    "\x1b[2J\x1b]0;mine\x07\x1bP\x9b31m\r\b\x7f \u202eback\u2066 \ufeff\u200b\u2028 \ud83d \x00"
    "\U000e0041"
)


@pytest.fixture
def keep():
    """Keep texts of the run `live`."""

    def keep(said, *, step=1, prompt="why?", **values):
        with closing(connect(run_dir("live") / "sentinel.db")) as connection:
            values = {"length": float(len(said)), **values}
            facts = {"prompt": prompt, "completion": said}
            record = Record("live", 0, step, 100.0, Event.SAMPLE, values=values, attributes=facts)
            SampleStore(connection).update(Result(record))

    return keep


def asked(*words):
    return CliRunner().invoke(app, ["samples", *words])


def steers(text):
    return [c for c in text if category(c).startswith("C") and c not in "\n\u200c\u200d"]


def test_prompt_completion_and_rewards_are_shown(keep):
    keep("because\nit is so", step=70, **{"reward/right": 1.0, "advantage": -0.25, "finished": 0.0})

    done = asked("live")

    assert done.exit_code == 0
    assert "step 70, rank 0, 16 characters, cut off by the limit" in done.stdout
    assert "right 1  advantage -0.25" in done.stdout
    assert "  why?\ncompletion:\n  because\n  it is so\n" in done.stdout


def test_a_text_cannot_command_the_terminal(keep):
    keep(NASTY, prompt=NASTY, **{f"reward/{NASTY}": 1.0})

    for words in (["live"], ["live", "--json"]):
        done = asked(*words)
        assert done.exit_code == 0
        assert steers(done.stdout) == []
    assert "\\x1b[2J" in asked("live").stdout


def test_no_character_that_steers_is_left_as_it_is():
    every = "".join(map(chr, range(0x110000)))
    assert steers(escape_invisible(every).replace("\t", "")) == []


@pytest.mark.parametrize(
    "said", ["日本語です", "ปลา", "naïve “so”", "👩‍👩‍👧", "می‌خواهم", "x = [1]\n\ty"]
)
def test_what_people_write_is_shown_as_written(said):
    assert escape_invisible(said) == said


def test_json_is_one_whole_object_a_line(keep):
    keep("one\ntwo", **{"reward": float("nan"), "reward/short": 0.5})
    keep("three", step=2)

    first, second = map(json.loads, asked("live", "--json").stdout.splitlines())

    assert first["completion"] == "one\ntwo"
    assert first["rewards"] == {"": "nan", "short": 0.5}
    assert (second["step"], second["finished"], second["prompt_length"]) == (2, None, None)


def test_a_step_and_a_number_of_texts_may_be_asked_for(keep):
    for step in (1, 1, 2):
        keep(f"of step {step}", step=step)

    assert asked("live", "--step", "1").stdout.count("of step 1") == 2
    assert "of step 1" not in asked("live", "--limit", "1").stdout
    assert "has shown no text of step 9" in asked("live", "--step", "9").stdout
    assert asked("live", "--step", "9", "--json").stdout == ""


@pytest.mark.parametrize("name", ["absent", "../live", "", "a/b"])
def test_a_run_that_is_not_there_is_named_and_none_is_made(name):
    done = asked(name)

    assert done.exit_code == 2
    assert repr(name) in done.stderr
    assert not home_dir().exists()


def test_a_database_that_cannot_be_read_is_named(keep):
    path = run_dir("live") / "sentinel.db"
    path.write_bytes(b"no database" * 1000)
    done = asked("live")
    assert (done.exit_code, str(path) in done.stderr) == (2, True)

    path.unlink()
    keep("so")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    done = asked("live")
    assert (done.exit_code, "upgrade" in done.stderr) == (2, True)
