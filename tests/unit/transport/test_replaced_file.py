"""A file is replaced in one instant, and an error leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sentinel.transport.replaced_file import replace_file


def test_threads_that_replace_a_file_at_once_leave_one_whole_content(tmp_path):
    path = tmp_path / "note.json"
    bodies = [bytes([number]) * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: [replace_file(path, body) for _ in range(20)], bodies))

    assert path.read_bytes() in bodies
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]


def test_an_error_leaves_the_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "note.json"
    replace_file(path, b"former")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")

    assert path.read_bytes() == b"former"
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]
