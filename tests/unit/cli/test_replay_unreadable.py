"""No log: what is handed to replay and is none is told in one line, and nothing falls over it."""

from __future__ import annotations

from random import Random

import pytest
from support.event_files import VERSION
from typer.testing import CliRunner

from sentinel.cli.main import app

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
    assert line.startswith(f"sentinel replay: cannot read {path}: ")
