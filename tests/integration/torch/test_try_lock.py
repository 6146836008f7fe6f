"""The try-lock never makes a caller wait, and the guard never lets an error through."""

import signal
import sys
import threading
import time

import pytest
import torch
from support.recorders import RecordedRank

from sentinel.client import try_lock
from sentinel.client.try_lock import MAX_DEFERRED_CALLS
from sentinel.model.record import Event
from sentinel.transport.ring_layout import MAX_CLIENT_ERRORS

ENOUGH = 200


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


def log_from_threads(rank, *, threads, calls):
    """The values of each thread's records, in the order of the ring."""

    def work(thread):
        for turn in range(calls):
            rank.recorder.log({f"t{thread}": float(turn), "n": 1.0})

    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rank.recorder.close({})
    values = [record.values for record in rank.records() if record.event is Event.STEP]
    return [[each[name] for each in values if (name := f"t{n}") in each] for n in range(threads)]


@pytest.mark.fault("I5")
def test_sixteen_threads_in_a_tight_loop_lose_nothing(rank):
    """As many calls as the queue holds, in case one thread is interrupted for all that time."""
    recorded = log_from_threads(rank, threads=16, calls=MAX_DEFERRED_CALLS // 16 // 4)

    assert recorded == 16 * [[float(n) for n in range(MAX_DEFERRED_CALLS // 16 // 4)]]
    assert rank.drops() == {}


@pytest.mark.fault("I5")
def test_what_does_not_fit_the_queue_is_counted_and_the_rest_stays_in_order(rank, monkeypatch):
    monkeypatch.setattr(try_lock, "MAX_DEFERRED_CALLS", 16)
    monkeypatch.setattr(try_lock, "MAX_CALLS_RUN", 4)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        recorded = log_from_threads(rank, threads=16, calls=400)
    finally:
        sys.setswitchinterval(interval)

    assert sum(map(len, recorded)) + rank.drops().get("busy", 0) == 16 * 400
    assert all(values == sorted(set(values)) for values in recorded)


@pytest.mark.fault("I5")
def test_a_signal_handler_may_log_in_the_middle_of_a_log(rank):
    """The handler finds the lock held; its log is deferred until the holder releases it."""
    handled = 0

    def handler(*_):
        nonlocal handled
        handled += 1
        rank.recorder.log({"handler": 1.0})

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    logs = 0
    try:
        deadline = time.monotonic() + 60.0
        while min(logs, handled) < ENOUGH:
            assert time.monotonic() < deadline, (logs, handled)
            rank.recorder.log({"main": 1.0, "x": torch.tensor(0.5)})
            logs += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    rank.recorder.close({})

    header = rank.reader.read_header()
    assert header.errors == 0
    assert header.sequence > logs


@pytest.mark.fault("I5")
def test_a_log_inside_a_log_is_written_afterwards(rank):
    class LoggingDict(dict):
        def __getitem__(self, key):
            rank.recorder.log({"inner": 1.0})
            return super().__getitem__(key)

    rank.recorder.log(LoggingDict(outer=1.0))

    assert {"outer": 1.0} in rank.values()


@pytest.mark.swallows_errors
def test_internal_errors_are_counted_and_too_many_disable_the_client(rank, monkeypatch):
    def fail(*args):
        raise RuntimeError("internal")

    monkeypatch.setattr(rank.recorder._log_writer, "write", fail)
    for _ in range(MAX_CLIENT_ERRORS + 30):
        rank.recorder.log({"x": 1.0})

    assert rank.reader.read_header().errors == MAX_CLIENT_ERRORS


@pytest.mark.swallows_errors
def test_strict_raises_internal_errors(tmp_path, monkeypatch):
    strict = RecordedRank(tmp_path / "s.ring", strict=True)
    monkeypatch.setattr(strict.recorder._log_writer, "write", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        strict.recorder.log({"x": 1.0})


@pytest.mark.swallows_errors
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_guard_does_not_swallow_interrupts_and_exits(rank, monkeypatch, error):
    def stop(*args):
        raise error

    monkeypatch.setattr(rank.recorder._log_writer, "write", stop)

    with pytest.raises(error):
        rank.recorder.log({"x": 1.0})


def test_nothing_is_written_after_the_end(rank):
    rank.recorder.close({})
    rank.recorder.log({"x": 1.0})
    rank.take_step(loss=1.0)

    assert [record.event for record in rank.records()] == [Event.STOP]
