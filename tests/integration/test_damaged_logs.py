"""Bad logs: whatever is wrong with a log of a healthy run, nothing fails and nobody is woken."""

from __future__ import annotations

import os
from math import inf, nan
from pathlib import Path
from random import Random

import pytest
from support.log_files import FORMATS, healthy_rows
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.cli.replay import replay_records
from sentinel.config.plugins import load_classes
from sentinel.model.finding import Severity
from sentinel.pipeline.engine import Engine
from sentinel.readers.format_detection import open_log

DETECTORS = load_classes("detectors")
SEED = 4


def story(path):
    told = replay_records(open_log(path), Engine(DETECTORS))
    assert told.failed_detectors == []
    return told


def loud(told):
    """Detectors that would have woken somebody."""
    return {
        each.incident.key.detector
        for each in told.case_notifications
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
        each.incident.resolved_step
        for each in told.case_notifications
        if each.incident.severity.order < 2
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


def resident():
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="as Linux tells it")
def test_a_million_points_are_read_one_row_at_a_time(tmp_path):
    path, rows = tmp_path / "long.jsonl", 50_000
    rest = "".join(f', "mine/{n}": 0.{n}' for n in range(18))
    with path.open("w") as file:
        file.writelines(f'{{"step": {n}, "loss": 2.{n}, "kl": 0.{n}{rest}}}\n' for n in range(rows))
    reading = open_log(path)
    records = iter(reading)
    for _ in range(10_000):
        next(records)
    before = resident()
    assert sum(len(record.values) for record in records) > 40_000 * 20 - 100
    # Kept, the rest of the rows would be over 60 MiB.
    assert resident() - before < 2**24
    assert reading.skipped == 0
