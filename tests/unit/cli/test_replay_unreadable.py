"""`sentinel replay` of a file that is not a log is one line on stderr and exit code 2."""

from __future__ import annotations

from random import Random

import pytest
from support.event_files import VERSION
from typer.testing import CliRunner

from sentinel.cli.main import app

INVALID_FILES = {
    "empty": b"",
    "blank": b"\n \n\t\n",
    "one byte": b"{",
    "zeros": bytes(5000),
    "noise": Random(1).randbytes(20_000),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
    "a pickle": b"\x80\x04\x95" + bytes(50),
    "prose": b"Epoch 1: loss went down.\n" * 50,
    "json without rows": b"[1, 2, 3]",
    "nested and truncated": b'{"step": 1, "data": {' * 3,
    "a truncated state": b'{"log_history": [{"step": 1, "loss": 2.0}',
    "a state without rows": b'{"log_history": {"step": 1}}',
    "a header of event files": VERSION,
    "a header of W&B": b":W&B\xe1\xbe\x00",
    "a header of SQLite": b"SQLite format 3\0" + bytes(100),
    "column names only": b"step,loss\n",
    "byte order marks": b"\xef\xbb\xbf\xff\xfe",
    "one long line": b'{"step": 1, "text": "' + b"x" * 3_000_000,
    "rows without numbers": b'{"a": "b"}\n' * 20,
}


@pytest.mark.fault("I11")
@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES)
@pytest.mark.parametrize("name", ["log", "trainer_state.json", "metrics.csv", "run.wandb", "a.db"])
def test_a_file_that_is_not_a_log_is_one_line_that_names_it(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["replay", str(path), "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sentinel replay: cannot read {path}: ")
