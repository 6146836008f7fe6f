"""Real ranks that hang in the kernel, in C, in a loop and in a data loader: each is named as such.

Each kind is a run of one process with its own agent; all of them run at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from support.rank_processes import until
from support.webhook_receiver import Receiver

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes 5 seconds on an idle machine."""

SCRIPT = """
import ctypes, os, sys, time
from pathlib import Path

import sentinel

kind, pipe = sys.argv[1:]

def wait_for_disk():
    # The caller of posix_spawn is in state D until its child executes the program, and the child
    # first opens a pipe without a writer.
    libc, actions = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 3, pipe.encode(), os.O_RDONLY, 0)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, arguments, None)

def hold_gil():
    ctypes.PyDLL(None).sleep(3600)

def spin():
    while True: pass

def load():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            time.sleep(3600.0 if index == 20 else 0.0)
            return index

    for batch in torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=1):
        step(10**6 + batch)

def step(number):
    sentinel.log({"loss": 1.0 / number}, step=number)
    time.sleep(0.01)

if kind == "load":
    import torch

@sentinel.monitor(run=kind)
def train():
    registration = Path(os.environ["SENTINEL_HOME"], "runs", kind, "agent.json")
    number = 0
    while number < 100 or not registration.exists():
        number += 1
        step(number)
    globals()[kind]()

train()
"""

SETTINGS = """
linger_seconds = 0.2
hold_seconds = 0
[detectors.run_stalled]
floor = 3
patience_phase = 4
[sinks.webhook]
url = "{url}"
"""


class Hang:
    """One run that hangs, and its alerts."""

    def __init__(self, folder, kind: str, receiver: Receiver) -> None:
        self.receiver, self.folder = receiver, folder
        folder.mkdir()
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "sentinel.toml").write_text(SETTINGS.format(url=receiver.url))
        home, rings = folder / "home", folder / "rings"
        self.registration = home / "runs" / kind / "agent.json"
        environment = {"SENTINEL_HOME": str(home), "SENTINEL_RUNTIME_DIR": str(rings)}
        self.process = subprocess.Popen(
            [sys.executable, "train.py", kind, str(self.pipe)],
            cwd=folder,
            env={**os.environ, **environment, "SENTINEL_RUN_ID": kind, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def wait_for_alert(self, text: str) -> None:
        """Wait for an alert of run_stalled with `text` in its summary.

        The first one has it, unless the machine is busier than the limit allows for.
        """
        until(lambda: any(text in each for each in self.summaries()), TIMEOUT_SECONDS, text)

    def summaries(self) -> list[str]:
        alerts = [request.json for request in self.receiver.accepted]
        assert {alert["commonLabels"]["detector"] for alert in alerts} <= {"run_stalled"}
        return [alert["commonAnnotations"]["summary"] for alert in alerts]

    def close(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()
        # It would try for a day to reach the receiver, which ends now.
        os.kill(json.loads(self.registration.read_text())["pid"], 9)
        with suppress(OSError):
            # Ends the child that posix_spawn has created.
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[[str], Hang]]:
    """Returns a function that starts a run which hangs in the function `kind` of SCRIPT."""
    with ExitStack() as stack:

        def start_kind(kind: str) -> Hang:
            hang = Hang(tmp_path / kind, kind, stack.enter_context(Receiver()))
            stack.callback(hang.close)
            return hang

        yield start_kind


def line(text: str) -> int:
    """Number of the line of SCRIPT with that text."""
    return next(n for n, each in enumerate(SCRIPT.splitlines(), 1) if text in each)


@pytest.mark.fault("R4", "R5", "R7")
def test_a_process_that_runs_no_python_or_only_a_loop_is_named_with_its_line(start):
    disk, gil, spin = map(start, ("wait_for_disk", "hold_gil", "spin"))
    place = f"wait_for_disk (train.py:{line('libc.posix_spawn(')})"
    disk.wait_for_alert(f"the process waits for a disk or a file system in {place}")
    # With py-spy, and the permission to read the process, its stack is added.
    gil.wait_for_alert("the process does not return to Python")
    spin.wait_for_alert(f"the process is in spin (train.py:{line('while True')}")


@pytest.mark.full
@pytest.mark.fault("R2")
def test_a_worker_of_a_data_loader_that_hangs_is_named_as_such(start):
    pytest.importorskip("torch")
    place = f"train.py:{line('in torch.utils.data.DataLoader')}"
    expected = f"the process waits for the next batch of a DataLoader ({place})"
    start("load").wait_for_alert(expected)
