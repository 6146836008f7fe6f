"""`sentinel samples`: generated texts, which must not control the terminal."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from unicodedata import category

import pytest
from typer.testing import CliRunner

from sentinel.cli._terminal import escape_unprintable
from sentinel.cli.main import app
from sentinel.cli.samples import ALLOWED_CHARACTERS
from sentinel.model.record import Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import SCHEMA_VERSION, connect
from sentinel.store.samples import SampleStore
from sentinel.transport.paths import home_dir, run_dir

CONTROL_TEXT = (
    "\x1b[2J\x1b]0;mine\x07\x1bP\x9b31m\r\b\x7f \u202eback\u2066 \ufeff\u200b\u2028 \ud83d \x00"
    "\U000e0041"
)


@pytest.fixture
def store():
    """Returns a function that stores a sample of the run `live`."""

    def store(completion, *, step=1, prompt="why?", **values):
        with closing(connect(run_dir("live") / "sentinel.db")) as connection:
            values = {"length": float(len(completion)), **values}
            attributes = {"prompt": prompt, "completion": completion}
            record = Record(
                "live", 0, step, 100.0, Event.SAMPLE, values=values, attributes=attributes
            )
            SampleStore(connection).update(Result(record))

    return store


def run_samples(*arguments):
    return CliRunner().invoke(app, ["samples", *arguments])


def unprintable(text):
    return [c for c in {*text} if category(c).startswith("C") and c not in "\n\u200c\u200d"]


def test_prompt_completion_and_rewards_are_shown(store):
    store(
        "because\nit is so", step=70, **{"reward/right": 1.0, "advantage": -0.25, "finished": 0.0}
    )

    done = run_samples("live")

    assert done.exit_code == 0
    assert "step 70, rank 0, 16 characters, truncated at the length limit" in done.stdout
    assert "right 1  advantage -0.25" in done.stdout
    assert "  why?\ncompletion:\n  because\n  it is so\n" in done.stdout


@pytest.mark.fault("X9")
def test_a_text_cannot_control_the_terminal(store):
    store(CONTROL_TEXT, prompt=CONTROL_TEXT, **{f"reward/{CONTROL_TEXT}": 1.0})

    for arguments in (["live"], ["live", "--json"]):
        done = run_samples(*arguments)
        assert done.exit_code == 0
        assert unprintable(done.stdout) == []
    assert "\\x1b[2J" in run_samples("live").stdout


def test_every_unprintable_character_is_escaped():
    all_characters = "".join(map(chr, range(0x110000)))
    assert (
        unprintable(escape_unprintable(all_characters, ALLOWED_CHARACTERS).replace("\t", "")) == []
    )


@pytest.mark.parametrize(
    "text", ["日本語です", "ปลา", "naïve “so”", "👩‍👩‍👧", "می‌خواهم", "x = [1]\n\ty"]
)
def test_ordinary_text_is_unchanged(text):
    assert escape_unprintable(text, ALLOWED_CHARACTERS) == text


def test_json_is_one_object_per_sample(store):
    store("one\ntwo", **{"reward": float("nan"), "reward/short": 0.5})
    store("three", step=2)

    first, second = map(json.loads, run_samples("live", "--json").stdout.splitlines())

    assert first["completion"] == "one\ntwo"
    assert first["rewards"] == {"": None, "short": 0.5}
    assert (second["step"], second["finished"], second["prompt_length"]) == (2, None, None)


def test_step_and_limit_select_samples(store):
    for step in (1, 1, 2):
        store(f"of step {step}", step=step)

    assert run_samples("live", "--step", "1").stdout.count("of step 1") == 2
    assert "of step 1" not in run_samples("live", "--limit", "1").stdout
    assert "has no samples of step 9" in run_samples("live", "--step", "9").stdout
    assert run_samples("live", "--step", "9", "--json").stdout == ""


@pytest.mark.fault("X16")
def test_deleted_texts_are_gone_from_the_files_of_the_run(store):
    for number in range(50):
        store(f"PRIVATE-{number} " * 200)
    result = run_samples("live", "--delete")

    assert (result.exit_code, result.stdout) == (0, "50 texts of run live deleted.\n")
    assert "no samples" in run_samples("live").stdout
    files = [path.read_bytes() for path in run_dir("live").iterdir() if path.is_file()]
    assert [data.count(b"PRIVATE") for data in files] == [0] * len(files)
    assert json.loads(run_samples("live", "--delete", "--json").stdout) == {
        "run": "live",
        "deleted": 0,
    }


@pytest.mark.parametrize("name", ["absent", "../live", "", "a/b"])
def test_an_unknown_run_is_an_error_and_is_not_created(name):
    done = run_samples(name)

    assert done.exit_code == 2
    assert repr(name) in done.stderr
    assert not home_dir().exists()


def test_an_unreadable_database_is_an_error_with_its_path(store):
    path = run_dir("live") / "sentinel.db"
    path.write_bytes(b"no database" * 1000)
    done = run_samples("live")
    assert (done.exit_code, str(path) in done.stderr) == (2, True)

    path.unlink()
    store("so")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    done = run_samples("live")
    assert (done.exit_code, "Upgrade sentinel" in done.stderr) == (2, True)


def test_texts_are_searched(store):
    store("The sky is BLUE.", step=1, reward=float("nan"))
    store("No idea.", step=2)

    done = run_samples("live", "--search", "blue")
    assert "sky is BLUE" in done.stdout
    assert "reward not finite" in done.stdout
    assert "No idea" not in done.stdout
    assert "has no samples with 'green'" in run_samples("live", "--search", "green").stdout
