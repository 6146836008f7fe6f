"""The last step of a log is read from the end of its files."""

from __future__ import annotations

import os
from random import Random

import pytest
from support.log_files import FORMATS

from sentinel.readers.last_step import TAIL_BYTES, read_last_step
from sentinel.readers.log_folder import find_logs

ROWS = [{"step": n, "time": 1.7e9 + n, "loss": 2.0 + n, "x": 0.5} for n in range(1, 2001)]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_last_step_of_every_format(tmp_path, name):
    FORMATS[name](tmp_path, ROWS)
    (log,) = find_logs(tmp_path)
    assert read_last_step(log.path, log.format) == 2000


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"deepspeed"}))
def test_damaged_ends_raise_nothing(tmp_path, name):
    path = FORMATS[name](tmp_path, ROWS)
    (log,) = find_logs(tmp_path)
    file = path if path.is_file() else next(path.iterdir())
    data, random = bytearray(file.read_bytes()), Random(0)
    for _ in range(20):
        data[random.randrange(max(0, len(data) - TAIL_BYTES), len(data))] = random.randrange(256)
    file.write_bytes(data[: -random.randrange(1, 50)])
    read_last_step(log.path, log.format)


def test_what_cannot_be_read_has_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert read_last_step(tmp_path / "pipe", "JSONL") is None
    assert read_last_step(tmp_path / "missing", "TensorBoard") is None
    assert read_last_step(tmp_path, "nothing") is None
