"""JSON lines are read independently; unreadable ones are counted and skipped."""

import json
from math import isnan

import pytest

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers import jsonl
from sentinel.readers.lines import MAX_LINE_BYTES


@pytest.fixture
def read_log(tmp_path):
    """Write lines as a log and read it: its records, and the number of skipped lines."""

    def written(*lines):
        path = tmp_path / "run.jsonl"
        parts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"\n".join(parts) + b"\n")
        reader = jsonl.read(path)
        return list(reader), reader.skipped

    return written


def test_the_first_record_is_a_start_and_records_are_of_the_whole_run(read_log):
    (start, *records), _ = read_log({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})

    assert start.event is Event.START
    assert [(r.run, r.rank, r.step, r.values["loss"]) for r in records] == [
        ("run", WHOLE_RUN, 1, 2.0),
        ("run", WHOLE_RUN, 2, 1.0),
    ]


def test_a_stage_is_declared_by_an_event(read_log):
    (_, _, stage, _), _ = read_log(
        {"step": 1, "loss": 2.0}, {"event": "stage", "step": 1}, {"step": 2, "loss": 3.0}
    )

    assert (stage.event, stage.step, stage.rank) == (Event.STAGE, 1, WHOLE_RUN)


def test_a_bad_line_is_skipped_and_counted(read_log):
    records, skipped = read_log(
        {"step": 1, "loss": 2.0},
        b"{broken",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"3",
        b"{" * 3000,
        b'{"a":' * 3000,
        b"[" * 100_000,
        b"",
        {"step": 2, "loss": 1.0},
        b'{"step": 3, "loss": 0.5',
    )

    assert [r.step for r in records if r.event is Event.STEP] == [1, 2]
    assert skipped == 8


def test_a_line_that_is_too_long_is_skipped(read_log):
    long = b'{"step": 9, "text": "' + b"x" * (3 * MAX_LINE_BYTES) + b'"}'
    records, skipped = read_log({"step": 1, "loss": 2.0}, long, {"step": 2, "loss": 1.0})

    assert [r.step for r in records if r.event is Event.STEP] == [1, 2]
    assert skipped == 1


def test_nan_may_be_a_bare_token(read_log):
    records, _ = read_log(b'{"step": 1, "loss": NaN, "grad_norm": Infinity}')

    assert isnan(records[-1].values["loss"])
    assert records[-1].values["grad_norm"] == float("inf")


def test_null_is_nan_only_in_files_of_verl(read_log):
    verl, _ = read_log({"step": 1, "data": {"actor/kl_loss": None}})
    other, _ = read_log({"step": 1, "actor/kl_loss": None, "loss": 1.0})

    assert isnan(verl[-1].values["kl_ref"])
    assert "kl_ref" not in other[-1].values


def test_a_logged_start_replaces_the_generated_one(read_log):
    records, _ = read_log({"event": "start", "save_steps": 500}, {"step": 1, "loss": 1.0})

    assert [r.event for r in records] == [Event.START, Event.STEP]
    assert records[0].values["save_steps"] == 500.0


def test_max_steps_is_read_from_the_rows(read_log):
    (start, *_), _ = read_log({"current_steps": 5, "total_steps": 100, "loss": 1.0})

    assert start.values == {"max_steps": 100.0}


def test_an_empty_file_has_no_records(read_log):
    assert read_log(b"") == ([], 0)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"step": 1}\n{"step": 2}\n', True),
        (b'\n\n{"step": 1}\n', True),
        (b'{"step": 1, "text": "' + b"x" * 4096, True),
        (b'{\n  "log_history": []\n}', False),
        (b"step,loss\n1,2\n", False),
        (b"\x1f\x8b\x08", False),
        (b"", False),
    ],
)
def test_it_detects_its_format(tmp_path, head, expected):
    assert jsonl.can_read(tmp_path / "any", head) is expected
