"""JSON lines are read independently; unreadable ones are counted and skipped."""

import json
import sys
from math import isnan
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers import jsonl
from sentinel.readers.jsonl import BLOCK_LINES
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


LINES = [
    b'{"step": 1, "loss": 2.0}',
    b'{"step": 2, "loss": NaN, "note": "a { b"}',
    b'{"step": 3, "inner": {"reward": 1.0}}',
    b'\xef\xbb\xbf{"step": 4, "loss": 1.0}',
    b'{"a": 1}, {"b": 2}',
    b'{"x": [1',
    b"2]}",
    b'{"x": [{"y": 1}',
    b'{"z": 2}]}',
    b'{"open": "text',
    b'more"}',
    b"[1, 2]",
    b"3, 4",
    b"{broken",
    b"\xff\xfe",
    b"",
    b'{"step": 5, "event": "save"}',
    b'{"step": 6, "big": 123456789012345678901234567890, "loss": 1e400}',
    b'{"step": 7, "loss": 0.1000000000000000055511151231257827, "kl": -0, "kl": 5e-324}',
    b'{"step": 8, "loss": 1.0, "note": "half a character: \\ud83d"}',
]


@given(st.lists(st.sampled_from(LINES), max_size=3 * BLOCK_LINES), st.booleans())
def test_lines_that_are_parsed_together_give_the_records_of_each_line(lines, is_ended):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n" * is_ended)
        read = []
        for parse in (jsonl._parse_flat_objects, lambda block: None):
            with patch.object(jsonl, "_parse_flat_objects", parse):
                reader = jsonl.read(path)
                records = [(repr(each), reader.position, reader.line) for each in reader]
                read.append((records, reader.skipped, reader.unread_lines, reader.unread_counts))

    assert read[0] == read[1]


def test_the_number_of_an_unread_line_counts_blank_and_long_lines(read_log, tmp_path):
    long = b'{"text": "' + b"x" * MAX_LINE_BYTES + b'"}'
    read_log({"step": 1, "loss": 2.0}, b"", b"{broken", long, {"step": 2, "loss": 2.0}, b"{last")
    reader = jsonl.read(tmp_path / "run.jsonl")

    assert len([*reader]) == 3
    assert sorted(each.number for each in reader.unread_lines) == [3, 4, 6]


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


def test_a_file_with_its_suffix_needs_no_other_reader(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n')
    code = (
        "import sys; from pathlib import Path;"
        "from sentinel.readers.format_detection import find_reader;"
        "found = find_reader(Path(sys.argv[1]))[0].__name__;"
        "names = ('console', 'csv', 'tensorboard', 'follow');"
        "print(found, [n for n in names if f'sentinel.readers.{n}' in sys.modules])"
    )
    made = run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)

    assert made.stdout.split(maxsplit=1) == ["sentinel.readers.jsonl", "[]\n"]
