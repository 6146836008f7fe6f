"""Logs of known truth, and what `sentinel replay` says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app

BACK = [{"step": step, "loss": 1.0} for step in (9, 3, 4)]
"""Goes back, and on from there."""


@pytest.fixture
def log(tmp_path):
    def written(rows):
        path = tmp_path / "run.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return written


def ask(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def lines(path):
    return [json.loads(line) for line in ask(path, "--json").stdout.splitlines()]


def told(path):
    *found, summary = lines(path)
    return [line for line in found if line["type"] == "incident"], summary


def healthy(count=200) -> Iterator[dict[str, float]]:
    rng = Random(0)
    for step in range(1, count + 1):
        yield {"step": step, "loss": 3 / step**0.3 * rng.uniform(0.9, 1.1), "kl": 0.02}


def collapse():
    """KL and reward of a healthy run, and a blow-up from step 301 on."""
    rows = list(healthy(300))
    return rows + [{"step": 300 + n, "loss": 0.5, "kl": 0.02 * 1.5**n} for n in range(1, 31)]
