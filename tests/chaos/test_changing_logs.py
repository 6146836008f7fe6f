"""Logs that are rotated, replaced, cut or half written while `sentinel watch` follows them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.event_files import event, event_file, framed
from support.followed_logs import append_rows, loss_rows
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.store.database import connect

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TIMEOUT_SECONDS = 240.0


class Watch:
    """`sentinel watch` of a log, and what it stored and sent."""

    def __init__(self, folder: Path, path: Path, receiver: Receiver) -> None:
        self.receiver = receiver
        self.database = folder / "home" / "runs" / "log" / "sentinel.db"
        self.output = folder / "output"
        environ = os.environ | {
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
            "SENTINEL_PORT": "0",
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_HOLD_SECONDS": "0",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
            "SENTINEL_DISABLE": "loss_plateau,loss_never_moved,loss_spike,loss_divergence",
        }
        command = [sys.executable, "-m", "sentinel", "watch", str(path), "--run", "log"]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)

    def steps(self) -> list[int]:
        """The stored steps, in order."""
        if not self.database.exists():
            return []
        with closing(connect(self.database)) as database:
            query = "select step from step where event = 'step' order by id"
            return [step for (step,) in database.execute(query)]

    def until_step(self, step: int) -> None:
        """Wait until that step is stored."""
        until(
            lambda: step in self.steps(),
            TIMEOUT_SECONDS,
            f"step {step} of {self.steps()[-5:]}; {self.output.read_text()[-2000:]}",
        )

    def detectors(self) -> list[str]:
        """The detector of each notification, in order."""
        return [each.json["commonLabels"]["detector"] for each in self.receiver.accepted]

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def watched(folder: Path, path: Path):
    with Receiver() as receiver:
        watch = Watch(folder, path, receiver)
        try:
            yield watch
        finally:
            watch.close()


def copied_and_cut(path: Path) -> None:
    """As by `logrotate` with `copytruncate`: the trainer writes on in the same file."""
    path.with_suffix(".1").write_bytes(path.read_bytes())
    os.truncate(path, 0)


def renamed(path: Path) -> None:
    """As by `logrotate` with `create`."""
    path.rename(path.with_suffix(".1"))
    path.touch()


def removed(path: Path) -> None:
    """The trainer opens a new file a moment later."""
    path.unlink()


def zero_filled(path: Path) -> None:
    """The file system lost the end of the file in a crash, but not its length."""
    with path.open("ab") as file:
        file.write(bytes(4096) + b"\n")


def half_written(path: Path) -> None:
    """The process was killed in the middle of a row, and the next one appends."""
    with path.open("ab") as file:
        file.write(b'{"step": 99, "lo\n')


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(copied_and_cut, marks=pytest.mark.fault("I12")),
        pytest.param(renamed, marks=pytest.mark.fault("I12")),
        pytest.param(removed, marks=pytest.mark.fault("I12")),
        pytest.param(zero_filled, marks=pytest.mark.fault("I13")),
        pytest.param(half_written, marks=pytest.mark.fault("I13")),
    ],
)
def test_a_log_is_followed_on_after_it_changed(tmp_path, change: Callable[[Path], None]):
    path = tmp_path / "log.jsonl"
    append_rows(path, *loss_rows(1, 40))
    with watched(tmp_path, path) as watch:
        watch.until_step(39)
        change(path)
        append_rows(path, *loss_rows(40, 60))
        watch.until_step(59)
        append_rows(path, *loss_rows(60, 70, loss=math.nan))
        until(watch.detectors, TIMEOUT_SECONDS, "the NaN")

        assert watch.process.poll() is None
        assert watch.steps()[:59] == list(range(1, 60))
        assert watch.detectors() == ["nan_or_inf"]


@pytest.mark.full
@pytest.mark.fault("I14")
def test_a_state_that_is_half_written_or_replaced_is_read_when_it_is_whole(tmp_path):
    """A checkpoint of an earlier step replaces the state: the training was resumed from it."""
    folder = tmp_path / "out"
    folder.mkdir()

    def write(last: int, part: float = 1.0, loss: float = 2.5) -> None:
        history = [{"step": step, "loss": loss} for step in range(1, last + 1)]
        text = json.dumps({"log_history": history, "max_steps": 100})
        (folder / "new.json").write_text(text[: int(len(text) * part)])
        (folder / "new.json").rename(folder / "trainer_state.json")

    write(20)
    with watched(tmp_path, folder / "trainer_state.json") as watch:
        watch.until_step(20)
        write(30, part=0.5)
        write(30)
        watch.until_step(30)
        write(10)
        write(35)
        watch.until_step(35)

        assert watch.process.poll() is None
        assert set(watch.steps()) == set(range(1, 36))
        assert "nan_or_inf" not in watch.detectors()


@pytest.mark.full
@pytest.mark.fault("I15")
def test_an_event_file_that_ends_within_a_record_is_read_on(tmp_path):
    """The writer of TensorBoard flushes at any byte."""
    folder = tmp_path / "events"
    path = event_file(folder, *(event(step, "train/loss", 2.0) for step in range(1, 20)))
    with watched(tmp_path, folder) as watch:
        watch.until_step(18)
        for step in range(20, 40):
            record = framed(event(step, "train/loss", 2.0))
            for part in (record[:7], record[7:20], record[20:]):
                with path.open("ab") as file:
                    file.write(part)
                os.utime(path)
        watch.until_step(38)

        assert watch.steps()[:38] == list(range(1, 39))
        assert watch.detectors() == []
