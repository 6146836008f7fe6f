"""An agent with a detector that raises, hostile names, few descriptors, and a kill."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import psutil
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from support.rank_processes import until
from support.webhook_receiver import Receiver

TIMEOUT_SECONDS = 240.0
MAX_DESCRIPTORS = 64
MAX_METRICS_BYTES = 2_000_000
MAX_RSS_BYTES = 500_000_000

TRAINING = """
import select, sys, time, sentinel
HOSTILE = ["a\\nERROR forged line", "\\x1b[31mred", "=cmd()", 'x"} 1\\nforged 2', "n" * 1_000_000]
faults = set()
with sentinel.monitor():
    step = 0
    while True:
        if sys.stdin in select.select([sys.stdin], [], [], 0.01)[0]:
            word = sys.stdin.readline().strip()
            if not word:
                break
            faults.add(word)
        step += 1
        loss = float("nan") if "nan" in faults else 5.0 - step / 1000
        flood = {}
        if "flood" in faults:
            flood = {f"name {step} {i}": 1.0 for i in range(200)} | dict.fromkeys(HOSTILE, 1.0)
        sentinel.log({"loss": loss, **flood}, step=step)
"""

RAISING = """
from dataclasses import dataclass
from typing import ClassVar
from sentinel.model.finding import Severity

@dataclass
class Raising:
    needs: ClassVar = frozenset({"loss"})
    signal: ClassVar = "loss"
    severity: ClassVar = Severity.WARNING
    remedy: ClassVar = "None."

    def update(self, record):
        raise RuntimeError("a bug of this detector")
"""


def add_plugin(folder):
    """Install the detector `raising` in that folder of the import path."""
    info = folder / "raising-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "raising.py").write_text(RAISING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raising\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sentinel.detectors]\nraising = raising:Raising\n")


class Run:
    """A rank with an agent that it has started."""

    def __init__(self, folder, receiver, **popen):
        self.folder = folder
        (folder / "train.py").write_text(TRAINING)
        environ = os.environ | {
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
            "SENTINEL_RUN_ID": "live",
            "SENTINEL_PORT": "0",
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
            "PYTHONPATH": os.pathsep.join([str(folder / "plugins"), os.environ["PYTHONPATH"]]),
        }
        self.rank = subprocess.Popen(
            [sys.executable, str(folder / "train.py")], env=environ, stdin=subprocess.PIPE, **popen
        )

    @property
    def directory(self):
        return self.folder / "home" / "runs" / "live"

    def registration(self):
        with suppress(OSError, ValueError):
            return json.loads((self.directory / "agent.json").read_text())
        return None

    def agent(self):
        with suppress(psutil.NoSuchProcess, TypeError):
            return psutil.Process(self.registration()["pid"])
        return None

    def get(self, route):
        """The text at that route; empty if the agent does not answer."""
        with suppress(requests.RequestException, TypeError):
            return requests.get(f"{self.registration()['url']}{route}", timeout=240).text
        return ""

    def await_step(self, minimum):
        def is_there():
            text = self.get("/api/run")
            return bool(text) and (json.loads(text).get("step") or 0) >= minimum

        until(is_there, TIMEOUT_SECONDS, f"step {minimum}")

    def write_command(self, word):
        self.rank.stdin.write(f"{word}\n".encode())
        self.rank.stdin.flush()

    def close(self):
        agent = self.agent()
        self.rank.stdin.close()
        self.rank.wait(TIMEOUT_SECONDS)
        if agent is not None:
            with suppress(psutil.TimeoutExpired):
                agent.wait(TIMEOUT_SECONDS)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


def nan_statuses(receiver):
    """The notifications of the NaN, in their order; a constant loss is notified too."""
    bodies = [request.json for request in receiver.accepted]
    return [b["status"] for b in bodies if b["commonLabels"]["detector"] == "nan_or_inf"]


def samples(text):
    """Every sample of an exposition, by name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.mark.full
@pytest.mark.fault("A6", "X9", "X13")
def test_a_raising_detector_and_a_flood_of_names_stop_nothing(receiver, tmp_path):
    add_plugin(tmp_path / "plugins")
    run = Run(tmp_path, receiver)
    try:
        run.await_step(50)
        run.write_command("flood")
        run.await_step(150)
        run.write_command("nan")
        until(lambda: nan_statuses(receiver), TIMEOUT_SECONDS, "the NaN is notified")
        exposition = run.get("/metrics")
        found = samples(exposition)

        errors = {labels["detector"]: n for labels, n in found["sentinel_detector_errors_total"]}
        assert errors["raising"] == 3
        dropped = {labels["reason"]: n for labels, n in found["sentinel_dropped_records_total"]}
        assert dropped["too_many_names"] > 1000
        assert len(exposition) < MAX_METRICS_BYTES
        assert "forged" not in found
        assert "\x1b" not in exposition
        assert run.agent().memory_info().rss < MAX_RSS_BYTES
        log = (run.directory / "agent.log").read_text()
        assert not re.search(r"^ERROR forged line", log, re.MULTILINE)
        assert "\x1b" not in log
        assert run.rank.poll() is None
    finally:
        run.close()
    assert run.rank.returncode == 0


def limit_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))


@pytest.mark.full
@pytest.mark.fault("A8")
def test_an_agent_with_few_descriptors_that_is_killed_still_notifies(receiver, tmp_path):
    """The kernel ends a process for lack of memory with SIGKILL; idle clients hold descriptors."""
    run = Run(tmp_path, receiver, preexec_fn=limit_descriptors)
    try:
        run.await_step(20)
        first = run.agent()
        first.kill()
        until(lambda: run.agent() not in (None, first), TIMEOUT_SECONDS, "another agent")
        run.await_step(40)
        with ExitStack() as stack:
            address = "127.0.0.1", run.registration()["port"]
            for _ in range(2 * MAX_DESCRIPTORS):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection(address, timeout=5))
            run.write_command("nan")
            until(lambda: nan_statuses(receiver), TIMEOUT_SECONDS, "the NaN is notified")
        run.await_step(100)
        assert nan_statuses(receiver) == ["firing"]
        assert run.rank.poll() is None
    finally:
        run.close()
    assert run.rank.returncode == 0
