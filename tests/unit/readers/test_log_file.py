"""Logs that are compressed, in another encoding, or no regular files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
import subprocess
import sys
import tracemalloc
from contextlib import closing

import pytest
from support.log_files import FORMATS
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.model.record import Event
from sentinel.readers import log_file
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_file import open_log_file

TEXT_FORMATS = ("jsonl", "verl", "trainer_state", "table")
ROWS = [{"step": n, "time": 1.7e9 + n, "loss": 2.0 - n / 1000} for n in range(1, 301)]


def losses(path):
    return [record.values["loss"] for record in open_log(path) if "loss" in record.values]


def replay(path):
    return CliRunner().invoke(app, ["replay", str(path), "--json"])


@pytest.mark.fault("I11")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_a_text_log_is_read_in_its_encoding_and_from_gzip(tmp_path, kind, compress, encoding):
    path = FORMATS[kind](tmp_path, ROWS)
    expected, runs = losses(path), {record.run for record in open_log(path)}
    content = compress(path.read_text().encode(encoding))
    if compress is gzip.compress:
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(content)
    assert losses(path) == expected
    assert {record.run for record in open_log(path)} == runs


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "trackio"])
def test_a_binary_log_in_gzip_is_refused_with_the_remedy(tmp_path, kind):
    path = FORMATS[kind](tmp_path, ROWS)
    path = next(path.iterdir()) if path.is_dir() else path
    compressed = path.with_name(f"{path.name}.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    result = replay(compressed)
    assert result.exit_code == 2
    assert f"compressed with gzip; decompress it first (gunzip -k {compressed.name})" in (
        result.stderr
    )


@pytest.mark.fault("I11")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bz2.compress(b"{}\n"), "bzip2"),
        (lzma.compress(b"{}\n"), "xz"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
        (b"\x04\x22\x4d\x18" + bytes(20), "lz4"),
        (b"PK\x03\x04" + bytes(20), "zip"),
        (gzip.compress(gzip.compress(b"{}\n")), "gzip"),
        (gzip.compress(bytes(257) + b"ustar" + bytes(300)), "tar -xf"),
        ('{"step": 1, "loss": 2.0}\n'.encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
        ('{"step": 1, "loss": 2.0}\n'.encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8"),
    ],
    # Not the contents: gzip stores the time, and pytest-xdist needs the same names in each process.
    ids=["bzip2", "xz", "zstd", "lz4", "zip", "gzip", "tar", "utf-16-le", "utf-16-be"],
)
def test_what_is_not_read_is_named_with_the_remedy(tmp_path, content, reason):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    result = replay(path)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert reason in line
    assert " first (" in line


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_what_precedes_damage_in_gzip_is_read(tmp_path, damage):
    path = tmp_path / "log.jsonl.gz"
    rows = [{"step": n, "loss": 2.0 + n / 7} for n in range(1, 5_001)]
    content = bytearray(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[-5] ^= 1  # in the length at the end
    path.write_bytes(content)
    log = open_log(path)
    found = [record.values["loss"] for record in log if "loss" in record.values]
    assert found == [row["loss"] for row in rows[: len(found)]]
    assert len(found) > 1_000
    assert "compressed data" in log.notice
    assert "what precedes is read" in replay(path).stderr


def test_gzip_that_ends_before_the_first_record_is_refused(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"step": 1, "loss": 2.0}\n')[:10])
    result = replay(path)
    assert result.exit_code == 2
    assert "its compressed data end early, before the first record" in result.stderr
    assert "is read" not in result.stderr


@pytest.mark.fault("X12")
@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_a_file_that_decompresses_to_far_more_is_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(log_file, "MIN_DECOMPRESSED_BYTES", 2**21)
    path = FORMATS[kind](tmp_path, ROWS)
    text = path.read_bytes()
    bomb = text[:-1] + b" " * 2**24 + text[-1:]
    path = path.with_name(f"{path.name}.gz")
    path.write_bytes(gzip.compress(bomb))
    tracemalloc.start()
    result = replay(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.exit_code == 2
    assert "decompresses to more than" in result.stderr
    assert peak < 2**24


@pytest.mark.fault("I11")
@pytest.mark.parametrize("command", ["replay", "watch"])
def test_a_pipe_is_refused_and_does_not_stop_its_writer(tmp_path, command):
    path = tmp_path / "log.jsonl"
    os.mkfifo(path)
    write = f"with open({str(path)!r}, 'w') as f: f.write('written')"
    with subprocess.Popen([sys.executable, "-c", write]) as writer:
        run = subprocess.run(
            [sys.executable, "-m", "sentinel", command, path],
            timeout=240,
            check=False,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 2
        (line,) = run.stderr.splitlines()
        assert "it is a pipe" in line
        assert f"cat {path} >" in line
        assert path.read_text() == "written"
    assert writer.returncode == 0


def test_a_pipe_without_a_name_is_refused(tmp_path):
    for command in ("replay", "watch"):
        run = subprocess.run(
            [sys.executable, "-m", "sentinel", command, "/dev/stdin"],
            timeout=240,
            check=False,
            capture_output=True,
            input=b'{"step": 1, "loss": 2.0}\n',
        )
        assert run.returncode == 2
        assert b"it is a pipe" in run.stderr


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize(
    "line", ['{"step": %d, "loss": %.1f}\n', "step %d loss %.1f\n"], ids=["jsonl", "console"]
)
def test_what_follows_the_hole_of_a_truncated_log_is_read(tmp_path, line, is_sparse):
    """As logrotate leaves it with `copytruncate`, if the writer does not append."""
    path = tmp_path / "train.log"
    size = 1 << 32 if is_sparse else 100_000
    with path.open("wb") as file:
        file.write(b"" if is_sparse else bytes(size))
        file.seek(size)
        file.write("".join(line % (step, step / 2) for step in range(1, 5)).encode())

    expected = [(step, step / 2) for step in range(1, 5)]
    reader = open_log(path)
    assert [(r.step, r.values["loss"]) for r in reader if r.event is Event.STEP] == expected
    assert reader.skipped == 0

    following = open_log(path, is_live=True).follow()
    while next(following) is not None:
        pass
    with path.open("ab") as file:
        file.write("".join(line % (step, step / 2) for step in range(5, 9)).encode())
    assert (next(following).step, next(following).step) == (5, 6)


def test_sockets_and_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind("log")
        assert "it is a socket" in replay("log").stderr
    assert "it is a device" in replay("/dev/null").stderr
    with pytest.raises(IsADirectoryError):
        open_log_file(tmp_path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(b'{"step": 1, "loss": 2.0}\n'), "compressed with gzip"),
        ('{"step": 1, "loss": 2.0}\n'.encode("utf-16"), "a text in UTF-16"),
    ],
    ids=["gzip", "utf-16"],
)
def test_a_log_that_has_to_be_converted_is_not_followed(tmp_path, content, kind):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["watch", str(path)])
    assert result.exit_code == 2
    assert f"it is {kind}" in result.stderr
    assert "sentinel replay" in result.stderr


def test_a_log_that_becomes_a_pipe_is_reported_and_followed_again(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n')
    log = open_log(path, is_live=True)
    records = log.follow()
    while next(records) is not None:
        pass
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="it is a pipe"):
        next(records)
