"""JSONL: every line on its own; what cannot be read is counted and passed over."""

import json
from math import isnan

import pytest

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers import jsonl
from sentinel.readers.lines import MAX_LINE_BYTES


@pytest.fixture
def log(tmp_path):
    """Write lines as a log and read it back: its records, and how many lines were skipped."""

    def written(*lines):
        path = tmp_path / "run.jsonl"
        parts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"\n".join(parts) + b"\n")
        reading = jsonl.read(path)
        return list(reading), reading.skipped

    return written


def test_begins_with_a_start_and_speaks_for_the_whole_run(log):
    (start, *told), _ = log({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})

    assert start.event is Event.START
    assert [(r.run, r.rank, r.step, r.values["loss"]) for r in told] == [
        ("run", WHOLE_RUN, 1, 2.0),
        ("run", WHOLE_RUN, 2, 1.0),
    ]


def test_bad_lines_spoil_no_other(log):
    told, skipped = log(
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

    assert [r.step for r in told if r.event is Event.STEP] == [1, 2]
    assert skipped == 8


def test_a_line_without_end_is_passed_over(log):
    long = b'{"step": 9, "text": "' + b"x" * (3 * MAX_LINE_BYTES) + b'"}'
    told, skipped = log({"step": 1, "loss": 2.0}, long, {"step": 2, "loss": 1.0})

    assert [r.step for r in told if r.event is Event.STEP] == [1, 2]
    assert skipped == 1


def test_nan_may_be_a_bare_word(log):
    told, _ = log(b'{"step": 1, "loss": NaN, "grad_norm": Infinity}')

    assert isnan(told[-1].values["loss"])
    assert told[-1].values["grad_norm"] == float("inf")


def test_null_is_nan_in_the_file_of_verl_alone(log):
    verl, _ = log({"step": 1, "data": {"actor/kl_loss": None}})
    other, _ = log({"step": 1, "actor/kl_loss": None, "loss": 1.0})

    assert isnan(verl[-1].values["kl_ref"])
    assert "kl_ref" not in other[-1].values


def test_a_declared_start_is_the_only_one(log):
    told, _ = log({"event": "start", "save_steps": 500}, {"step": 1, "loss": 1.0})

    assert [r.event for r in told] == [Event.START, Event.STEP]
    assert told[0].values["save_steps"] == 500.0


def test_the_end_of_the_run_is_learnt_from_its_rows(log):
    (start, *_), _ = log({"current_steps": 5, "total_steps": 100, "loss": 1.0})

    assert start.values == {"max_steps": 100.0}


def test_an_empty_file_holds_nothing(log):
    assert log(b"") == ([], 0)


@pytest.mark.parametrize(
    ("head", "known"),
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
def test_recognises_its_own(tmp_path, head, known):
    assert jsonl.can_read(tmp_path / "any", head) is known
