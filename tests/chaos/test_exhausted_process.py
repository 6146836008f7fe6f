"""No frames and no memory left, in real processes: calls of sentinel raise nothing."""

from __future__ import annotations

import json
import subprocess

import pytest

FRAMES = """
import json
import sentinel

def with_phase(step):
    with sentinel.phase("eval"):
        pass

calls = {
    "log": lambda step: sentinel.log({"loss": 1.0, f"key{step}": 2.0}, step=step),
    "mark": lambda step: sentinel.mark("eval", step=step, loss=1.0),
    "log_samples": lambda step: sentinel.log_samples(["prompt"], ["text"], step=step),
    "requested": lambda step: sentinel.requested(),
    "phase": with_phase,
}

def frames_left(depth=1):
    try:
        return frames_left(depth + 1)
    except RecursionError:
        return depth

def call_at_depth(depth, call, step):
    if depth > 0:
        return call_at_depth(depth - 1, call, step)
    try:
        call(step)
    except RecursionError:
        return True

@sentinel.monitor(run="exhausted", agent=False)
def train():
    with_phase(0)
    sentinel.log, sentinel.mark, sentinel.log_samples, sentinel.requested
    step, raised = 0, []
    for name, call in calls.items():
        # A function needs a frame of its own, and a generator in a `with` statement four.
        for left in range(6 if name == "phase" else 3, 60):
            step += 1
            if call_at_depth(frames_left() - left, call, step):
                raised.append((name, left))
    sentinel.log({"loss": 1.0}, step=step + 1)
    print(json.dumps([raised, step + 1]))

train()
"""

MEMORY = """
import json
import sentinel
from sentinel.transport import ring

# Real exhaustion is not repeatable: every allocation of the interpreter may fail.
def fail(*_):
    raise MemoryError

class Failing:
    def __enter__(self):
        self.old = ring.crc32, ring.RingWriter.count_error
        ring.crc32 = ring.RingWriter.count_error = fail

    def __exit__(self, *_):
        ring.crc32, ring.RingWriter.count_error = self.old

@sentinel.monitor(run="exhausted", agent=False)
def train():
    sentinel.log({"loss": 1.0}, step=1)
    raised = []
    for step in range(2, 5):
        try:
            with Failing():
                sentinel.log({"loss": 1.0}, step=step)
                sentinel.mark("eval", step=step, loss=1.0)
                sentinel.log_samples(["prompt"], ["text"], step=step)
                with sentinel.phase("eval"):
                    pass
        except MemoryError:
            raised.append(step)
        sentinel.log({"loss": 1.0}, step=step)
    print(json.dumps([raised, step]))

train()
"""


@pytest.mark.fault("P9")
@pytest.mark.parametrize("text", [FRAMES, MEMORY], ids=["frames", "memory"])
def test_a_call_raises_nothing_for_want_of_frames_or_memory(script, recorded, headers, text):
    done = subprocess.run(script(text), timeout=240, check=True, capture_output=True, text=True)
    raised, last = json.loads(done.stdout)

    assert raised == []
    assert last in [record.step for record in recorded()[0]]
    assert headers()[0].errors > 0
    assert headers()[0].outcome == "finished"
