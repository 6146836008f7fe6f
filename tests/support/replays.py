"""Logs with known incidents, and what `sentinel replay` prints for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app

REWOUND_ROWS = [{"step": step, "loss": 1.0} for step in (9, 3, 4)]
"""The step goes back, and continues from there."""


@pytest.fixture
def log(tmp_path):
    """Writes rows to a log file and returns its path."""

    def write(rows):
        path = tmp_path / "run.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return write


def run_replay(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def replay_lines(*arguments):
    return [json.loads(line) for line in run_replay(*arguments, "--json").stdout.splitlines()]


def replay_incidents(path):
    """The incident lines, and the summary."""
    *lines, summary = replay_lines(path)
    return [line for line in lines if line["type"] == "incident"], summary


def healthy_rows(count=200) -> Iterator[dict[str, float]]:
    rng = Random(0)
    for step in range(1, count + 1):
        yield {"step": step, "loss": 3 / step**0.3 * rng.uniform(0.9, 1.1), "kl": 0.02}


def collapse_rows():
    """KL and reward of a healthy run, and a KL blow-up from step 301 on."""
    rows = list(healthy_rows(300))
    return rows + [{"step": 300 + n, "loss": 0.5, "kl": 0.02 * 1.5**n} for n in range(1, 31)]
