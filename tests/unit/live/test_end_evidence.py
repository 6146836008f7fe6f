"""What the node knows of an end: the memory of its group, and torchrun's error file."""

from __future__ import annotations

import json
import signal

import pytest

from sentinel.live.end_evidence import EndEvidence
from sentinel.live.memory_cgroup import MemoryCgroup
from sentinel.live.process_watch import ProcessEnd

KILLED = ProcessEnd(1.0, signal.SIGKILL)
EXITED = ProcessEnd(1.0, 1 << 8)
TRACE = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n'
    '    run()\n  File "/x/site-packages/torch/nn.py", line 5, in forward\n'
)


@pytest.fixture
def evidence(tmp_path):
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    (tmp_path / "memory.max").write_text(str(64 << 30))
    memory = MemoryCgroup((tmp_path,))
    return EndEvidence(memory, tmp_path / "error.json", memory.oom_kills(), memory.oom_kills())


def test_a_kill_for_want_of_memory_is_counted_from_the_start_of_the_rank(evidence, tmp_path):
    assert evidence.attributes(KILLED) == {"signal": "SIGKILL"}
    (tmp_path / "memory.events").write_text("oom_kill 4\n")

    known = {"signal": "SIGKILL", "oom_kill": "yes", "memory_limit": "64 GiB"}
    assert evidence.attributes(KILLED) == known
    assert evidence.attributes(ProcessEnd(1.0)) == known
    assert evidence.attributes(ProcessEnd(1.0, signal.SIGTERM)) == {"signal": "SIGTERM"}


def test_an_earlier_kill_was_of_another_process(evidence, tmp_path):
    evidence.update(100.0)
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    for seconds, is_this in ((10.0, True), (31.0, True), (45.0, True), (62.0, False)):
        evidence.update(100.0 + seconds)
        assert ("oom_kill" in evidence.attributes(KILLED)) == is_this


@pytest.mark.parametrize(
    "error",
    [
        {"message": {"message": "ValueError: bad api_key=x", "extraInfo": {"py_callstack": TRACE}}},
        {"message": "ValueError: bad api_key=x"},
    ],
    ids=["with a trace", "text"],
)
def test_the_exception_in_the_error_file_of_torchrun_is_known(evidence, tmp_path, error):
    (tmp_path / "error.json").write_text(json.dumps(error))
    attributes = dict(evidence.attributes(EXITED))

    place = {"location": "train.py:88 in train_step"} if type(error["message"]) is dict else {}
    assert attributes == {
        "code": "1",
        "outcome": "exception",
        "exception": "ValueError",
        "message": "bad api_key=***",
        **place,
    }
    assert evidence.attributes(KILLED) == {"signal": "SIGKILL"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"message": 3}', '{"message": {"x": 1}}', "\xff"]
)
def test_a_damaged_error_file_is_ignored(evidence, tmp_path, text):
    (tmp_path / "error.json").write_text(text)

    assert evidence.attributes(EXITED).get("exception") is None
