"""A damaged log of a healthy run raises no exception and no incident above severity info."""

from __future__ import annotations

import os
from math import inf, nan
from pathlib import Path
from random import Random

import pytest
from support.log_files import FORMATS, healthy_rows
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.config.plugins import load_classes
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.replay import replay_records
from sentinel.readers.format_detection import open_log

DETECTORS = load_classes("detectors")
SEED = 4
STATES = {"trainer_state", "json_array"}
"""Formats that are read as a whole, to which a record is added."""


def replay(path):
    result = replay_records(open_log(path), Pipeline(DETECTORS, Counters()))
    assert (result.failed_detectors, result.dropped) == ([], 0)
    return result


def notified(result):
    """Detectors of the incidents above severity info."""
    return {
        each.incident.key.detector
        for each in result.incidents
        if each.incident.severity is not Severity.INFO
    }


def not_numbers(rows, random):
    invalid = ["n/a", "", None, [], [1.0], {}, {"a": "b"}, True, "1,5", "0x10", "None", "--"]
    return [
        {n: random.choice(invalid) if n not in ("step", "time") and random.random() < 0.1 else x
         for n, x in row.items()}
        for row in rows
    ]  # fmt: skip


def numbers_as_texts(rows, random):
    return [{n: str(x) if random.random() < 0.5 else x for n, x in row.items()} for row in rows]


def missing_values(rows, random):
    return [
        {n: x for n, x in row.items() if n in ("step", "time") or random.random() < 0.7}
        for row in rows
    ]


def missing_for_long(rows, random):
    return [
        {n: x for n, x in row.items() if n in ("step", "time") or not 150 <= row["step"] < 300}
        for row in rows
    ]


def unknown_metric_is_nan(rows, random):
    invalid = [nan, inf, -inf]
    return [{**row, "my/metric": random.choice(invalid)} for row in rows]


def doubled(rows, random):
    return [row for row in rows for _ in range(2)]


def repeated_steps(rows, random):
    return [*rows[:200], *rows[190:200], *rows[200:]]


def clock_goes_back(rows, random):
    return [{**row, "time": row["time"] - 3600.0 * (row["step"] > 200)} for row in rows]


def clock_jumps(rows, random):
    return [{**row, "time": row["time"] + 3600.0 * (row["step"] > 200)} for row in rows]


def clock_stops(rows, random):
    return [{**row, "time": rows[0]["time"]} for row in rows]


def clock_is_noisy(rows, random):
    return [{**row, "time": row["time"] + random.gauss(0.0, 600.0)} for row in rows]


def keys_collide(rows, random):
    return [{**row, "train/loss": 9.0, "Loss": 1e9, "train_loss": -3.0} for row in rows]


def keys_collide_later(rows, random):
    return [row if row["step"] < 200 else {**row, "train/kl": 50.0, "REWARD": -9.0} for row in rows]


def constant(rows, random):
    return [{**row, "learning_rate": 1e-6, "temperature": 1.0, "mine": 3.0} for row in rows]


def unusual_names(rows, random):
    unusual = {
        "": 1.0,
        "verlust \u00fc\u4e2d\U0001f600": 2.0,
        "a\x00b": 3.0,
        "x" * 2000: 4.0,
        "\ud800": 5.0,
    }
    return [{**row, **unusual} for row in rows]


def deeply_nested(rows, random):
    deep = 1.0
    for _ in range(60):
        deep = {"in": deep}
    return [{**row, "deep": deep} for row in rows]


def many_keys(rows, random):
    return [{**row, **{f"k{random.randrange(5000)}": 1.0 for _ in range(20)}} for row in rows]


def fractional_steps(rows, random):
    return [{**row, "step": row["step"] + 0.25} for row in rows]


DAMAGES = [
    not_numbers, numbers_as_texts, missing_values, missing_for_long, unknown_metric_is_nan,
    doubled, clock_goes_back, clock_jumps, clock_stops, clock_is_noisy,
    keys_collide, keys_collide_later, constant, unusual_names, deeply_nested, many_keys,
    fractional_steps,
]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_a_healthy_run_raises_no_incident_in_any_format(tmp_path, kind):
    result = replay(FORMATS[kind](tmp_path, healthy_rows(SEED)))
    assert notified(result) == set()
    assert (result.steps, result.skipped) == (400 + (kind in STATES), 0)


@pytest.mark.fault("I11")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", [SEED, 13])
def test_a_damaged_log_of_a_healthy_run_raises_no_incident(tmp_path, damage, seed):
    rows = damage(healthy_rows(seed), Random(seed))
    assert notified(replay(FORMATS["jsonl"](tmp_path, rows))) == set()


@pytest.mark.parametrize("kind", FORMATS)
def test_several_damages_raise_no_incident_in_any_format(tmp_path, kind):
    """Only damages that every format can hold; columns of numbers have no empty cells."""
    rows = healthy_rows(SEED)
    missing = () if kind == "number_columns" else (missing_values, missing_for_long)
    for damage in (*missing, doubled, clock_jumps, unknown_metric_is_nan):
        rows = damage(rows, Random(SEED))
    assert notified(replay(FORMATS[kind](tmp_path, rows))) == set()


def test_repeated_steps_raise_step_regression_only(tmp_path):
    rows = repeated_steps(healthy_rows(SEED), Random(SEED))
    assert notified(replay(FORMATS["jsonl"](tmp_path, rows))) == {"step_regression"}


@pytest.mark.parametrize("name", ["loss", "reward", "kl", "entropy"])
def test_nan_values_raise_nan_or_inf_only(tmp_path, name):
    rows = [{**row, name: nan} if 200 <= row["step"] < 230 else row for row in healthy_rows(SEED)]
    result = replay(FORMATS["jsonl"](tmp_path, rows))
    assert notified(result) == {"nan_or_inf"}
    assert all(
        each.incident.resolved_step for each in result.incidents if each.incident.severity.order < 2
    )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_run_of_three_steps_raises_no_incident(tmp_path, kind, length):
    path = FORMATS[kind](tmp_path, healthy_rows(SEED)[:length])
    if (kind, length) == ("console", 1):
        # One line may be prose with numbers.
        with pytest.raises(ValueError, match="its format is not known"):
            replay(path)
        return
    result = replay(path)
    # A list of one number may be a setting.
    length -= (kind, length) == ("json_columns", 1)
    assert (notified(result), result.steps) == (set(), length + (kind in STATES))


@pytest.mark.parametrize("kind", FORMATS)
def test_constant_values_raise_only_incidents_about_that(tmp_path, kind):
    rows = [{**row, "loss": 2.0, "reward": 0.0, "kl": 0.0} for row in healthy_rows(SEED)]
    assert notified(replay(FORMATS[kind](tmp_path, rows))) <= {
        "loss_never_moved", "loss_plateau", "reward_stalled", "reward_zero_variance",
    }  # fmt: skip


BROKEN_LINES = [
    b"\xff\xfe\x00", b"{", b"[1, 2]", b'"loss"', b"nan", b'{"a":' * 5000, b"x" * (2**20 + 5),
    b"\x00" * 4096, "{\u201closs\u201d: 1}".encode(), b'{"loss": 1e99999999}{"loss": 2}', b"{}",
]  # fmt: skip


@pytest.mark.fault("S6")
def test_broken_lines_are_counted_and_reported(tmp_path):
    path = FORMATS["jsonl"](tmp_path, healthy_rows(SEED))
    lines = path.read_bytes().split(b"\n")
    for index, line in enumerate(BROKEN_LINES):
        lines.insert(30 * index + 10, line)
    path.write_bytes(b"\n".join(lines))
    result = replay(path)
    assert (notified(result), result.skipped) == (set(), len(BROKEN_LINES))
    output = CliRunner().invoke(app, ["replay", str(path)]).stdout
    assert f"{len(BROKEN_LINES)} lines could not be read and were skipped" in output


@pytest.mark.fault("I11", "S6")
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "deepspeed"])
def test_a_truncated_file_is_read_up_to_the_last_whole_row(tmp_path, kind):
    whole = FORMATS[kind](tmp_path, healthy_rows(SEED)).read_bytes()
    path = tmp_path / "cut.log"
    for cut in sorted(Random(SEED).sample(range(len(whole)), 5)):
        path.write_bytes(whole[:cut])
        try:
            result = replay(path)
        except ValueError:
            # These cannot be read in part.
            assert kind in STATES | {"json_columns", "trackio"}
            continue
        assert notified(result) == set()
        assert result.skipped <= 1


@pytest.mark.fault("I11", "S6")
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "deepspeed"])
def test_a_file_with_random_bytes_raises_no_exception_but_value_error(tmp_path, kind):
    whole = FORMATS[kind](tmp_path, healthy_rows(SEED, 150)).read_bytes()
    path = tmp_path / "damaged.log"
    for seed in range(6):
        random, data = Random(seed), bytearray(whole)
        for _ in range(2 ** (2 * seed)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data)
        try:
            replay(path)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - allowed, not required


def resident_bytes():
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.fault("I11")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_million_values_are_read_in_bounded_memory(tmp_path):
    path, rows = tmp_path / "long.jsonl", 50_000
    others = "".join(f', "mine/{n}": 0.{n}' for n in range(18))
    with path.open("w") as file:
        file.writelines(
            f'{{"step": {n}, "loss": 2.{n}, "kl": 0.{n}{others}}}\n' for n in range(rows)
        )
    reading = open_log(path)
    records = iter(reading)
    for _ in range(10_000):
        next(records)
    before = resident_bytes()
    assert sum(len(record.values) for record in records) > 40_000 * 20 - 100
    # All rows in memory would take over 60 MiB.
    assert resident_bytes() - before < 2**24
    assert reading.skipped == 0
