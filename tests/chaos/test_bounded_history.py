"""A long run on real processes: its history, its database, the home and the agent stay small."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from sqlite3 import DatabaseError

import pytest
from support.rank_processes import ranks, release, until

from sentinel.model.record import Event
from sentinel.store.database import connect, connect_read_only
from sentinel.store.history import History
from sentinel.transport.paths import current_run_dir, run_dir

STEPS = 1800
KL = [0.02 + 0.0001 * (step % 7) for step in range(1500)] + [0.9 + 0.001 * n for n in range(300)]
PATIENCE_SECONDS = 400.0


@pytest.mark.fault("S9")
@pytest.mark.timeout(1200)
def test_a_long_run_is_thinned_and_the_home_is_pruned(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv("SENTINEL_HISTORY__FULL_STEPS", "1000")
    monkeypatch.setenv("SENTINEL_HISTORY__MAX_HOME_MB", "8")
    old = make_old_run(megabytes=9)
    run = "long"
    signals = {f"signal_{n}": [float(n)] for n in range(18)}
    with ranks() as begin:
        trainer = begin(
            run=run, world=1, steps=STEPS, ending="finished", hold=True, wait=False,
            values={"kl": KL, "loss": [1.0], **signals},
        )  # fmt: skip
        agent = subprocess.Popen([sys.executable, "-m", "sentinel", "agent", "--run", run])
        database = current_run_dir(run) / "sentinel.db"
        until(lambda: onsets(database), PATIENCE_SECONDS, "onset estimated")
        until(lambda: whole_steps(database) < STEPS - 300, PATIENCE_SECONDS, "steps are thinned")
        libraries = Path(f"/proc/{agent.pid}/maps").read_text()
        release(trainer)
        assert agent.wait(PATIENCE_SECONDS) == 0

    assert "scipy" not in libraries
    assert "numpy" not in libraries
    assert not old.exists()
    with closing(connect(database)) as connection:
        history = History(connection)
        rows = [record for _, record in history.rows() if record.event is Event.STEP]
        blocks = [block for block in history.blocks() if block.event is Event.STEP]
        steps = [record.step for record in history.records(run) if record.event is Event.STEP]
    assert len(rows) + sum(block.count for block in blocks) == STEPS
    assert 1000 <= len(rows) < STEPS - 300
    assert steps == sorted(steps)
    assert database.stat().st_size < 1000 * STEPS


def make_old_run(megabytes):
    """The directory of a run that ended two days ago."""
    directory = run_dir("old")
    with (directory / "sentinel.db").open("wb") as file:
        file.truncate(megabytes << 20)
    (directory / "outcome.json").touch()
    for path in (*directory.iterdir(), directory):
        os.utime(path, (time.time() - 2 * 86400.0,) * 2)
    return directory


def whole_steps(database):
    with closing(connect_read_only(database)) as connection:
        ((steps,),) = connection.execute("select count(*) from step where event = 'step'")
        return steps


def onsets(database):
    with (
        suppress(FileNotFoundError, DatabaseError),
        closing(connect_read_only(database)) as connection,
    ):
        return [each for each in History(connection).incidents() if each["onset"]]
    return []
