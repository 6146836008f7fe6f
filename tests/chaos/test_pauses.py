"""Healthy runs that pause for far longer than the limit of a hang alert nobody.

A pause lasts longer than the limit, and the limit must be longer than a busy machine stops a
healthy process. Where `CHAOS_KILLS` is set, as in `make soak`, the pauses are longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.webhook_receiver import Receiver

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.full,
    pytest.mark.timeout(3600),
]

LIMIT_SECONDS = 10.0
PAUSE_SECONDS = 45.0 if "CHAOS_KILLS" in os.environ else 20.0
KINDS = ("declared", "eval", "save", "batches", "python", "forward", "compile")

SCRIPT = """
import io, sys, time
import torch

import sentinel

kind, seconds = sys.argv[1], float(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def steps(count):
    for _ in range(count):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        time.sleep(0.02)

class SlowFile(io.BytesIO):
    def write(self, data):
        time.sleep(0.0 if self.tell() else seconds)
        return super().write(data)

class SlowData(torch.utils.data.Dataset):
    def __len__(self):
        return int(seconds / 2)

    def __getitem__(self, index):
        time.sleep(2.0)
        return index

def pause():
    end = time.monotonic() + seconds
    if kind == "declared":
        with sentinel.phase("rollout"):
            time.sleep(seconds)
    elif kind == "eval":
        model.eval()
        with torch.no_grad():
            model(torch.randn(16, 8))
        time.sleep(seconds)
        model.train()
    elif kind == "save":
        torch.save(model.state_dict(), SlowFile())
    elif kind == "batches":
        list(torch.utils.data.DataLoader(SlowData()))
    elif kind == "compile":
        layers = [layer for _ in range(40) for layer in (torch.nn.Linear(8, 8), torch.nn.GELU())]
        compiled = torch.compile(torch.nn.Sequential(*layers))
        while time.monotonic() < end:
            compiled(torch.randn(16, 8))
            torch._dynamo.reset()
    while kind == "forward" and time.monotonic() < end:
        with torch.no_grad():
            model(torch.randn(4096, 8))
    while kind == "python" and time.monotonic() < end:
        sum(len(str(n)) for n in range(10_000))

@sentinel.monitor(run="pause")
def train():
    steps(100)
    pause()
    steps(20)

train()
"""

SETTINGS = """
linger_seconds = 1.0
[detectors.run_stalled]
floor = {limit}
[sinks.webhook]
url = "{url}"
"""


@pytest.mark.fault("R12")
def test_long_pauses_of_healthy_runs_are_silent(tmp_path):
    with ExitStack() as stack:
        receivers = {kind: stack.enter_context(Receiver()) for kind in KINDS}
        trainings = {kind: start(tmp_path / kind, receivers[kind].url) for kind in KINDS}
        for training in trainings.values():
            assert training.wait() == 0
        alerts = {
            kind: [request.json["alerts"][0]["annotations"] for request in receiver.accepted]
            for kind, receiver in receivers.items()
        }
    assert {kind: found for kind, found in alerts.items() if found} == {}


def start(folder: Path, url: str) -> subprocess.Popen[bytes]:
    """Start the run whose kind is the name of the folder."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "sentinel.toml").write_text(SETTINGS.format(limit=LIMIT_SECONDS, url=url))
    environment = {
        **os.environ,
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "train.py", folder.name, str(PAUSE_SECONDS)]
    return subprocess.Popen(command, cwd=folder, env=environment)
