"""Bad logs: whatever is wrong with a log of a healthy run, nothing fails and nobody is woken."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest
from event_files import VERSION
from log_files import FORMATS, healthy_rows
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.cli.replay import tell
from sentinel.discover import classes
from sentinel.engine import Engine
from sentinel.finding import Severity
from sentinel.sources.recognised import recognised

DETECTORS = classes("detectors")
SEED = 4


def story(path):
    told = tell(recognised(path), Engine(DETECTORS))
    assert told.failed == []
    return told


def loud(told):
    """Detectors that would have woken somebody."""
    return {
        each.incident.key.detector
        for each in told.told
        if each.incident.severity is not Severity.INFO
    }


def untouched(rows, random):
    return rows


def no_numbers(rows, random):
    odd = ["n/a", "", None, [], [1.0], {}, {"a": "b"}, True, "1,5", "0x10", "None", "--"]
    return [
        {n: random.choice(odd) if n not in ("step", "time") and random.random() < 0.1 else x
         for n, x in row.items()}
        for row in rows
    ]  # fmt: skip


def numbers_as_texts(rows, random):
    return [{n: str(x) if random.random() < 0.5 else x for n, x in row.items()} for row in rows]


def missing(rows, random):
    return [
        {n: x for n, x in row.items() if n in ("step", "time") or random.random() < 0.7}
        for row in rows
    ]


def gone_for_long(rows, random):
    return [
        {n: x for n, x in row.items() if n in ("step", "time") or not 150 <= row["step"] < 300}
        for row in rows
    ]


def other_metric_is_nan(rows, random):
    odd = [nan, inf, -inf]
    return [{**row, "my/metric": random.choice(odd)} for row in rows]


def doubled(rows, random):
    return [row for row in rows for _ in range(2)]


def repeated_stretch(rows, random):
    return [*rows[:200], *rows[190:200], *rows[200:]]


def clock_goes_back(rows, random):
    return [{**row, "time": row["time"] - 3600.0 * (row["step"] > 200)} for row in rows]


def clock_leaps(rows, random):
    return [{**row, "time": row["time"] + 3600.0 * (row["step"] > 200)} for row in rows]


def clock_stands(rows, random):
    return [{**row, "time": rows[0]["time"]} for row in rows]


def clock_wanders(rows, random):
    return [{**row, "time": row["time"] + random.gauss(0.0, 600.0)} for row in rows]


def keys_collide(rows, random):
    return [{**row, "train/loss": 9.0, "Loss": 1e9, "train_loss": -3.0} for row in rows]


def keys_collide_later(rows, random):
    return [row if row["step"] < 200 else {**row, "train/kl": 50.0, "REWARD": -9.0} for row in rows]


def constant(rows, random):
    return [{**row, "learning_rate": 1e-6, "temperature": 1.0, "mine": 3.0} for row in rows]


def strange_names(rows, random):
    odd = {
        "": 1.0,
        "verlust \u00fc\u4e2d\U0001f600": 2.0,
        "a\x00b": 3.0,
        "x" * 2000: 4.0,
        "\ud800": 5.0,
    }
    return [{**row, **odd} for row in rows]


def deeply_nested(rows, random):
    deep = 1.0
    for _ in range(60):
        deep = {"in": deep}
    return [{**row, "deep": deep} for row in rows]


def many_keys(rows, random):
    return [{**row, **{f"k{random.randrange(5000)}": 1.0 for _ in range(20)}} for row in rows]


def steps_are_fractions(rows, random):
    return [{**row, "step": row["step"] + 0.25} for row in rows]


DISTURBED = [
    no_numbers, numbers_as_texts, missing, gone_for_long, other_metric_is_nan,
    doubled, clock_goes_back, clock_leaps, clock_stands, clock_wanders,
    keys_collide, keys_collide_later, constant, strange_names, deeply_nested, many_keys,
    steps_are_fractions,
]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_a_healthy_run_wakes_nobody_in_any_format(tmp_path, kind):
    told = story(FORMATS[kind](tmp_path, healthy_rows(SEED)))
    assert loud(told) == set()
    assert (told.steps, told.skipped) == (400 + (kind == "trainer_state"), 0)


@pytest.mark.parametrize("disturb", DISTURBED)
@pytest.mark.parametrize("seed", [SEED, 13])
def test_a_healthy_run_that_is_badly_logged_wakes_nobody(tmp_path, disturb, seed):
    rows = disturb(healthy_rows(seed), Random(seed))
    assert loud(story(FORMATS["jsonl"](tmp_path, rows))) == set()


@pytest.mark.parametrize("kind", FORMATS)
def test_so_it_is_in_every_format(tmp_path, kind):
    """All that one can be told in all of them, at once."""
    rows = healthy_rows(SEED)
    for disturb in (missing, gone_for_long, doubled, clock_leaps, other_metric_is_nan):
        rows = disturb(rows, Random(SEED))
    assert loud(story(FORMATS[kind](tmp_path, rows))) == set()


def test_a_stretch_that_is_logged_again_is_told_as_that_and_as_nothing_else(tmp_path):
    rows = repeated_stretch(healthy_rows(SEED), Random(SEED))
    assert loud(story(FORMATS["jsonl"](tmp_path, rows))) == {"step_regression"}


@pytest.mark.parametrize("name", ["loss", "reward", "kl", "entropy"])
def test_a_stretch_of_nan_is_told_as_that_and_as_nothing_else(tmp_path, name):
    rows = [{**row, name: nan} if 200 <= row["step"] < 230 else row for row in healthy_rows(SEED)]
    told = story(FORMATS["jsonl"](tmp_path, rows))
    assert loud(told) == {"nan_or_inf"}
    assert all(
        each.incident.resolved_step for each in told.told if each.incident.severity.order < 2
    )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_run_of_three_points_is_no_trouble(tmp_path, kind, length):
    told = story(FORMATS[kind](tmp_path, healthy_rows(SEED)[:length]))
    assert (loud(told), told.steps) == (set(), length + (kind == "trainer_state"))


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_constant_from_beginning_to_end_fails_nothing(tmp_path, kind):
    rows = [{**row, "loss": 2.0, "reward": 0.0, "kl": 0.0} for row in healthy_rows(SEED)]
    assert loud(story(FORMATS[kind](tmp_path, rows))) <= {
        "loss_never_moved", "loss_plateau", "reward_stalled", "reward_zero_variance",
    }  # fmt: skip


BROKEN_LINES = [
    b"\xff\xfe\x00", b"{", b"[1, 2]", b'"loss"', b"nan", b'{"a":' * 5000, b"x" * (2**20 + 5),
    b"\x00" * 4096, "{\u201closs\u201d: 1}".encode(), b'{"loss": 1e99999999}{"loss": 2}', b"{}",
]  # fmt: skip


def test_lines_that_are_none_are_counted_and_said(tmp_path):
    path = FORMATS["jsonl"](tmp_path, healthy_rows(SEED))
    lines = path.read_bytes().split(b"\n")
    for at, line in enumerate(BROKEN_LINES):
        lines.insert(30 * at + 10, line)
    path.write_bytes(b"\n".join(lines))
    told = story(path)
    assert (loud(told), told.skipped) == (set(), len(BROKEN_LINES))
    said = CliRunner().invoke(app, ["replay", str(path)]).stdout
    assert f"{len(BROKEN_LINES)} lines could not be read and were passed over" in said


ODD_FILES = {
    "empty": b"",
    "blank": b"\n \n\t\n",
    "one byte": b"{",
    "zeros": bytes(5000),
    "noise": Random(1).randbytes(20_000),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
    "a pickle": b"\x80\x04\x95" + bytes(50),
    "prose": b"Epoch 1: it went well.\n" * 50,
    "json without rows": b"[1, 2, 3]",
    "only an opening": b'{"step": 1, "data": {' * 3,
    "a state that is cut": b'{"log_history": [{"step": 1, "loss": 2.0}',
    "a state that is odd": b'{"log_history": {"step": 1}}',
    "a head of events": VERSION,
    "a head of W&B": b":W&B\xe1\xbe\x00",
    "a head of SQLite": b"SQLite format 3\0" + bytes(100),
    "names alone": b"step,loss\n",
    "marks of order": b"\xef\xbb\xbf\xff\xfe",
    "one long line": b'{"step": 1, "text": "' + b"x" * 3_000_000,
    "rows without numbers": b'{"a": "b"}\n' * 20,
}


@pytest.mark.parametrize("content", ODD_FILES.values(), ids=ODD_FILES)
@pytest.mark.parametrize("name", ["log", "trainer_state.json", "metrics.csv", "run.wandb", "a.db"])
def test_what_is_no_log_is_one_plain_line_that_names_it(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["replay", str(path), "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sentinel: cannot read {path}: ")


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "deepspeed"])
def test_a_file_that_is_cut_anywhere_tells_of_what_is_whole(tmp_path, kind):
    whole = FORMATS[kind](tmp_path, healthy_rows(SEED)).read_bytes()
    path = tmp_path / "cut.log"
    for cut in sorted(Random(SEED).sample(range(len(whole)), 5)):
        path.write_bytes(whole[:cut])
        try:
            told = story(path)
        except ValueError:
            # A state is one JSON, a database one file.
            assert kind in {"trainer_state", "trackio"}
            continue
        assert loud(told) == set()
        assert told.skipped <= 1


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "deepspeed"])
def test_a_file_with_wrong_bytes_in_it_fails_nothing(tmp_path, kind):
    """What they say may be anything, and is judged; where it says nothing, it is counted."""
    whole = FORMATS[kind](tmp_path, healthy_rows(SEED, 150)).read_bytes()
    path = tmp_path / "wrong.log"
    for seed in range(6):
        random, data = Random(seed), bytearray(whole)
        for _ in range(2 ** (2 * seed)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data)
        try:
            story(path)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - it is allowed, and need not come
