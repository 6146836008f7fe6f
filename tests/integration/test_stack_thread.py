"""The client's one thread answers requests for the stack of the training thread."""

import os
import subprocess
import sys
import threading
import time

import pytest
from support.rank_processes import until

import sentinel
from sentinel.client.session import current_session
from sentinel.client.stack_thread import THREAD_NAME
from sentinel.live.py_spy import PySpy
from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.rank_stack import parse_stacks
from sentinel.transport.stack_channel import (
    NEW_ANSWER_SUFFIX,
    answer_path,
    read_answer,
    remove_channel,
    request_path,
    send_request,
)

monitored = sentinel.monitor(run="test", agent=False)
SECONDS = 240.0
"""Limit of what takes milliseconds on an idle machine."""


def ask(ring, number):
    assert send_request(ring, number)

    def answer():
        found = read_answer(ring)
        return found if found is not None and found.number == number else None

    return until(answer, SECONDS, "an answer")


def stack_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_earlier_thread():
    """The thread of an earlier run ends after the run."""
    until(lambda: not stack_threads(), SECONDS, "the end of an earlier thread")


def test_the_answer_is_the_stack_of_the_training_thread_without_locals():
    secret = "a secret"  # noqa: F841 - it must not be in the answer
    with monitored:
        ring = current_session().ring.path
        answer = ask(ring, 1)
        assert "a secret" not in answer_path(ring).read_text()
        assert answer_path(ring).stat().st_mode & 0o077 == 0
        functions = [frame.function for frame in answer.frames]
        assert sys._getframe().f_code.co_qualname in functions
        assert not any("sentinel/client" in frame.file for frame in answer.frames)
        assert ask(ring, 2).number == 2


def test_a_thread_that_moves_is_told_from_one_that_waits():
    moves, waits = threading.Event(), []

    def ask_until_it_moves(ring):
        while not ask(ring, 1 + len(waits)).has_moved:
            waits.append(None)
        moves.set()

    def ask_until_it_waits(ring):
        number = 1_000_000
        while ask(ring, number).has_moved:
            number += 1

    def spin():
        while not moves.is_set():
            sum(range(100))

    with monitored:
        ring = current_session().ring.path
        asker = threading.Thread(target=ask_until_it_moves, args=(ring,))
        asker.start()
        spin()
        asker.join()
        # This thread waits in `join` until an answer says so.
        asker = threading.Thread(target=ask_until_it_waits, args=(ring,))
        asker.start()
        asker.join(SECONDS)
        assert not asker.is_alive()


def test_the_thread_ends_with_the_run_and_leaves_no_file():
    with monitored:
        ring = current_session().ring.path
        assert len(stack_threads()) == 1
        assert not send_request(ring.with_name("9-9.ring"), 1)
    until(lambda: not stack_threads(), SECONDS, "the end of the thread")
    until(lambda: not request_path(ring).exists(), SECONDS, "the end of the pipe")
    assert not send_request(ring, 1)


@pytest.mark.fault("I6")
def test_a_forked_child_has_no_thread_and_does_not_end_the_parents():
    with monitored:
        ring = current_session().ring.path
        child = os.fork()
        if not child:
            os._exit(len(stack_threads()))
        assert os.waitpid(child, 0)[1] == 0
        assert ask(ring, 1).frames


HANGING = """
import sys, time, sentinel
with sentinel.monitor(run="test", agent=False):
    sentinel.log({"loss": 1.0}, step=1)
    def load_batch():
        print("ready", flush=True), time.sleep(3600)
    load_batch()
"""


@pytest.fixture
def hanging():
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdout=subprocess.PIPE,
        env={**os.environ, "SENTINEL_RUN_ID": "test"},
    )
    assert child.stdout.readline() == b"ready\n"
    yield child
    child.kill()
    child.communicate()


def poll_stacks(rings):
    def stacks():
        heartbeats = [record for record in rings.poll() if "stacks" in record.attributes]
        return parse_stacks(heartbeats[-1].attributes["stacks"]) if heartbeats else None

    return until(stacks, SECONDS, "stacks")


@pytest.fixture
def rings():
    rings = LiveRings("test", Counters())
    yield rings
    rings.stack_sampler.close()


def test_the_agent_samples_ranks_without_a_step(hanging, rings):
    (stack,) = poll_stacks(rings)
    assert stack.ranks == (0,)
    assert [frame.function for frame in stack.frames][:2] == ["load_batch", "<module>"]


def test_stacks_of_a_stall_end_with_it_after_the_clock_was_set_back(hanging, rings):
    poll_stacks(rings)
    (rank,), (sampler,) = rings.ranks.values(), rings.stack_sampler.samplers.values()
    rank.last_progress_at -= 3600.0
    sampler.poll(rank.last_progress_at)
    assert sampler.stack is None
    assert not sampler.step_seconds


def test_a_stopped_rank_is_read_from_outside(hanging, rings):
    os.kill(hanging.pid, 19)

    def state():
        (stack,) = poll_stacks(rings)
        return stack if stack.state else None

    stack = until(state, SECONDS, "the state")
    assert stack.state == "is suspended by SIGSTOP"
    os.kill(hanging.pid, 18)


def test_py_spy_reads_a_process_that_does_not_answer(hanging):
    pytest.importorskip("importlib.metadata").version("py-spy")
    os.kill(hanging.pid, 19)
    reader = PySpy(hanging.pid, time.time())
    frames = until(lambda: reader.poll(time.time()) or reader.has_ended, SECONDS, "py-spy")
    if frames is True:
        pytest.skip("no permission to read the memory of a process")
    assert [frame.function for frame in frames][:1] == ["load_batch"]
    os.kill(hanging.pid, 18)


def test_without_py_spy_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    reader = PySpy(os.getpid(), 0.0)

    assert (reader.poll(0.0), reader.has_ended) == ((), True)
    reader.close()


def test_py_spy_has_a_deadline(monkeypatch, tmp_path):
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 3600\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    reader = PySpy(os.getpid(), 0.0)

    assert not reader.poll(9.0)
    assert not reader.has_ended
    assert not reader.poll(11.0)
    assert reader.has_ended


@pytest.mark.fault("R7")
def test_a_py_spy_that_cannot_be_killed_blocks_nothing(monkeypatch, tmp_path):
    """A reader of a process in state D may be in state D itself."""
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 3600\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    reader = PySpy(os.getpid(), 0.0)
    program, kill = reader._child, reader._child.kill
    monkeypatch.setattr(program, "kill", lambda: None)
    assert reader.poll(11.0) == ()
    assert reader.has_ended
    assert program.returncode is None
    kill()
    until(lambda: program.returncode is not None, SECONDS, "the end of the program")


def test_an_answer_that_was_not_completed_is_removed_too(tmp_path):
    """Its rank was killed while it wrote."""
    ring = tmp_path / "rank-0.ring"
    ring.with_suffix(NEW_ANSWER_SUFFIX).write_text("[1, ")
    remove_channel(ring)
    assert not [*tmp_path.iterdir()]
