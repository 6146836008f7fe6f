"""Real ranks that log what they should not, or under clocks that are wrong: all is recorded.

The runs start at the same time; each test looks at one of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import struct
from pathlib import Path
from statistics import mean

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families as parse_metrics
from support.decorated_ranks import TIMEOUT_SECONDS, jobs
from support.rank_processes import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SOURCES = Path(__file__).parents[2]
WORLD, STEPS, KEYS = 4, 1000, 12

RANDOM_KEYS = f"""
import os, random, sys, time
import sentinel

rank = int(os.environ["RANK"])

@sentinel.monitor(run="keys")
def train():
    numbers = random.Random(rank)
    for step in range(1, {STEPS} + 1):
        names = [n for n in range({KEYS}) if numbers.random() < 0.5]
        if rank < {WORLD - 1} and names:
            values = {{f"mine/{{n}}": 1000.0 * n + 10 * rank + step / 1000 for n in names}}
            sentinel.log(values, step=step)
        if step == {STEPS // 2}:
            open(f"half{{rank}}", "w").close()
            while not os.path.exists("go on"):
                time.sleep(0.01)
        time.sleep(0.001)

train()
"""

CLOCK = """
import mmap, os, struct, sys, time

real, real_ns = time.time, time.time_ns
with open(os.environ["CLOCK"], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
own = float(os.environ["AGENT_SKEW" if "agent" in sys.orig_argv else "RANK_SKEW"])

def offset():
    return own + struct.unpack("d", shared[:8])[0]

time.time = lambda: real() + offset()
time.time_ns = lambda: real_ns() + int(offset() * 1e9)
"""
"""Replaces the clock of a process: a skew of its own, and one of all that changes with a file."""

ENDLESS = """
import itertools, os, time
import sentinel

@sentinel.monitor(run="endless")
def train():
    for step in itertools.count(1):
        sentinel.log({"loss": 1.0 / step}, step=step)
        if step == 100:
            with open(f".pid{os.environ['RANK']}", "w") as file:
                file.write(str(os.getpid()))
            os.replace(f".pid{os.environ['RANK']}", f"pid{os.environ['RANK']}")
        time.sleep(0.01)

train()
"""

STRANGE_STEPS = """
import sentinel

STEPS = [1, 2, 3, 10, 11, 11, 12, *range(13, 40), 20, 21, 22]

@sentinel.monitor(run="steps")
def train():
    for number, step in enumerate(STEPS):
        sentinel.log({"number": number}, step=step)

train()
"""

STRANGE_VALUES = """
import os, sys, time
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction

import numpy as np
import sentinel

class Hostile(dict):
    def refuse(self, *_):
        open("called", "w").close()
        raise SystemExit(9)

    __float__ = __int__ = __index__ = __str__ = __repr__ = __hash__ = __eq__ = refuse
    __bool__ = __len__ = __iter__ = __getattr__ = __array__ = items = keys = refuse

class HostileFloat(float):
    __float__ = __str__ = __repr__ = __hash__ = __eq__ = Hostile.refuse

VALUES = [
    None, "0.5", b"0.5", True, 1j, Decimal(1), Fraction(1, 2), [0.5], {"a": 0.5}, 10**400,
    object(), np.array([1.0, 2.0]), np.str_("1"), Hostile(), HostileFloat(1.0),
]
KEYS = [
    "", "x" * 1_000_000, 5, None, "a/b", "\\n", "\\ud800", "\\u2603", "__proto__", "x" * 256,
    'a{b="c"} 1', "\\x1b[31m", "</script><script>alert(1)</script>", "<!channel>", "a\\x00b",
    "\\u202egnp", "A/B", "a b", "a-b",
]

@sentinel.monitor(run="values")
def train():
    for step in range(1, 31):
        for value in VALUES:
            sentinel.log({"bad": value}, step=step)
        for key in KEYS:
            sentinel.log({key: 1.0 + KEYS.index(key)}, step=step)
        for values in (None, 5, "loss", [("loss", 1.0)], Hostile()):
            sentinel.log(values, step=step)
        sentinel.log({"up": float("inf"), "down": float("-inf"), "nan": float("nan")}, step=step)
        sentinel.log({"-0": -0.0, "tiny": 5e-324, "numpy": np.float32(0.5), "int": 3}, step=step)
        sentinel.log({"loss": np.array([0.25])}, step=step)
    while not os.path.exists("go on"):
        time.sleep(0.01)

train()
"""

RUN_NAME = 'evil <!channel>\n"x"} 1\x1b[2J</script>/../../etc'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs of this module by name, started together."""
    folder = tmp_path_factory.mktemp("runs")
    skewed = {**clock_environ(folder), "AGENT_SKEW": "7200"}
    plain = {"PYTHONPATH": str(SOURCES)}
    with jobs(folder) as start:
        yield {
            "keys": start(
                "keys",
                RANDOM_KEYS,
                world=WORLD,
                environ=skewed,
                rank_environ=lambda rank: {"RANK_SKEW": str((-3600, 3600)[rank % 2])},
            ),
            "steps": start("steps", STRANGE_STEPS, environ=plain),
            "values": start(
                "values",
                STRANGE_VALUES.replace('run="values"', f"run={RUN_NAME!r}"),
                run=None,
                environ={**plain, "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"},
            ),
        }


def clock_environ(folder):
    """Environment of processes whose clock is set by the file `clock` of that directory."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(CLOCK)
    (folder / "clock").write_bytes(bytes(8))
    return {
        "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{SOURCES}",
        "CLOCK": str(folder / "clock"),
        "AGENT_SKEW": "0",
        "RANK_SKEW": "0",
    }


def set_clock(clock, seconds):
    """Set the clock of all processes with that file forward by so many seconds."""
    with clock.open("r+b") as file:
        file.write(struct.pack("d", seconds))


@pytest.mark.fault("R10", "T6")
def test_random_keys_on_ranks_with_other_clocks_are_combined_by_key_and_step(runs):
    job = runs["keys"]
    for rank in range(WORLD):
        job.mark(f"half{rank}")
    set_clock(job.folder.parent / "clock", -7200.0)
    (job.folder / "go on").touch()
    assert job.wait() == 0

    records = job.steps()
    assert [record.step for record in records] == list(range(1, STEPS + 1))
    numbers = [random.Random(rank) for rank in range(WORLD - 1)]
    for step, record in enumerate(records, 1):
        values: dict[str, list[float]] = {}
        for rank, own in enumerate(numbers):
            for n in [n for n in range(KEYS) if own.random() < 0.5]:
                values.setdefault(f"mine/{n}", []).append(1000.0 * n + 10 * rank + step / 1000)
        found = {name: value for name, value in record.values.items() if name != "global_step"}
        assert found == pytest.approx({name: mean(each) for name, each in values.items()})
    assert job.alerts() == []


@pytest.mark.fault("R11")
def test_steps_are_recorded_as_they_are_and_a_step_back_is_reported(runs):
    job = runs["steps"]
    assert job.wait() == 0

    found = [(record.step, record.values["number"]) for record in job.steps()]
    # The two logs of step 11 are two values of one step.
    steps = [1, 2, 3, 10, 11, 12, *range(13, 40), 20, 21, 22]
    assert [step for step, _ in found] == steps
    assert found[4] == (11, 4.5)
    assert {alert[:2] for alert in job.alerts()} == {("step_regression", "warning")}
    assert [request.json["status"] for request in job.receiver.accepted] == ["firing", "resolved"]


@pytest.mark.fault("I1", "I3", "I4", "H6")
def test_strange_values_and_keys_change_nothing_and_are_shown_as_they_are(runs):
    job = runs["values"]
    url = job.agent()["url"]

    def shown():
        text = requests.get(f"{url}/metrics", timeout=240).text
        samples = [sample for family in parse_metrics(text) for sample in family.samples]
        logged = {s.labels["key"]: s.value for s in samples if s.name == "sentinel_logged_value"}
        return (text, samples, logged) if "tiny" in logged else None

    text, samples, logged = until(shown, TIMEOUT_SECONDS, "the values")
    assert (logged["up"], logged["down"], logged["tiny"]) == (math.inf, -math.inf, 5e-324)
    assert math.isnan(logged["nan"])
    assert 'key="up"' in text
    assert "\x1b" not in text
    assert len({s.labels["run"] for s in samples if "run" in s.labels}) == 1
    refused = {
        s.labels["reason"]: s.value
        for s in samples
        if s.name == "sentinel_dropped_records_total" and s.value
    }
    assert refused.keys() >= {"type", "range", "shape", "key"}
    nonfinite = {
        s.labels["signal"] for s in samples if s.name == "sentinel_nonfinite_total" and s.value
    }
    assert nonfinite >= {"up", "down", "nan"}
    state = requests.get(f"{url}/api/run", timeout=240).text
    json.loads(state, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (job.folder / "go on").touch()
    assert job.wait() == 0
    assert job.output.read_text() == ""
    assert not (job.folder / "called").exists()
    records = job.steps()
    assert [record.step for record in records] == list(range(1, 31))
    values = records[-1].values
    assert "bad" not in values
    assert (values["loss"], values["int"], values["numpy"]) == (0.25, 3.0, 0.5)
    names = ("a/b", "\n", "☃", "__proto__", "x" * 256, "</script><script>alert(1)</script>", "A/B")
    assert all(name in values for name in names)
    assert len({values[name] for name in names}) == len(names)


@pytest.mark.full
@pytest.mark.fault("T6")
@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_rank_that_stops_after_the_clock_was_set_is_found(tmp_path, seconds):
    with jobs(tmp_path) as start:
        limits = "[detectors.run_stalled]\nfloor = 8"
        job = start("job", ENDLESS, world=2, settings=limits, environ=clock_environ(tmp_path))
        pids = [int(job.mark(f"pid{rank}")) for rank in range(2)]
        job.agent()
        set_clock(tmp_path / "clock", seconds)
        os.kill(pids[1], signal.SIGSTOP)
        text = "rank 1 is suspended by SIGSTOP"
        until(lambda: any(text in each[2] for each in job.alerts()), TIMEOUT_SECONDS, text)
