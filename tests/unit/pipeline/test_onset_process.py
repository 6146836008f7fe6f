"""Tests of the estimate of an onset in a process of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

from sentinel.pipeline import onset_process
from sentinel.pipeline.onset import estimate_onset
from sentinel.pipeline.onset_process import OnsetProcess, OnsetProcessError
from sentinel.pipeline.onset_request import OnsetRequest

POINTS = tuple((step, 0.1 + 0.01 * (step * 7 % 5) + (step >= 120)) for step in range(160))
REQUEST = OnsetRequest("run/kl_blowup#1", 122, POINTS)


def test_the_estimates_are_those_of_this_process():
    constant = OnsetRequest("run/loss_spike#1", 100, tuple((step, 1.0) for step in range(160)))
    expected = estimate_onset(POINTS, 122)

    assert expected is not None
    assert OnsetProcess().estimate([REQUEST, constant]) == [expected, None]


def test_a_request_that_fails_has_no_estimate_and_the_others_have_theirs(caplog):
    broken = OnsetRequest("run/loss_spike#1", 100, ())
    with caplog.at_level(logging.ERROR):
        onsets = OnsetProcess().estimate([broken, REQUEST])

    assert onsets == [None, estimate_onset(POINTS, 122)]
    assert "run/loss_spike#1" in caplog.text
    assert "ValueError" in caplog.text


def test_a_process_that_fails_gives_an_error_without_a_traceback(monkeypatch):
    monkeypatch.setattr(onset_process, "_SCRIPT", "raise MemoryError('no room')")

    with pytest.raises(OnsetProcessError, match="exited with 1: MemoryError: no room"):
        OnsetProcess().estimate([REQUEST])


def test_a_process_that_hangs_is_killed_at_the_deadline(monkeypatch):
    monkeypatch.setattr(onset_process, "_SCRIPT", "import time; time.sleep(600)")
    process = OnsetProcess(deadline=0.2)

    with pytest.raises(OnsetProcessError, match="longer than"):
        process.estimate([REQUEST])
    assert process._child.returncode == -9


def test_a_process_is_killed_on_request(monkeypatch):
    monkeypatch.setattr(onset_process, "_SCRIPT", "import time; time.sleep(600)")
    process = OnsetProcess()

    def kill():
        while process._child is None:
            time.sleep(0.01)
        process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(OnsetProcessError, match="exited with -9"):
        process.estimate([REQUEST])
    thread.join()


@pytest.mark.fault("S9")
def test_the_agent_imports_no_numerical_library():
    """They would take more memory than the agent itself."""
    code = (
        "import sys, sentinel.agent.main, sentinel.cli.agent, sentinel.pipeline.onset_process\n"
        "from sentinel.config.settings import load_settings\n"
        "from sentinel.pipeline import pipeline\n"
        "pipeline.build(load_settings())\n"
        "print({'numpy', 'scipy', 'ruptures', 'torch'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "set()"
