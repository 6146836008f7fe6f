"""Gate and guard: nobody waits for us, nobody is hurt by us."""

import signal
import threading
import time

import pytest
import torch
from support.recorders import Told

from sentinel.model.record import Event
from sentinel.transport.ring_layout import MAX_CLIENT_ERRORS

ENOUGH = 200


@pytest.fixture
def hook(tmp_path):
    return Told(tmp_path / "0-0.ring")


def test_sixteen_threads_lose_nothing(hook):
    def work(thread):
        for turn in range(200):
            hook.recorder.log({f"t{thread}": float(turn), "n": 1.0})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.recorder.close({})

    told = sum(1 for record in hook.records() if record.event is Event.STEP)
    assert told + hook.drop_counts().get("busy", 0) == 16 * 200


def test_a_signal_handler_may_log_in_the_middle_of_a_log(hook):
    """The handler finds somebody inside; its words are said when that one leaves."""
    heard = 0

    def handler(*_):
        nonlocal heard
        heard += 1
        hook.recorder.log({"handler": 1.0})

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    logs = 0
    try:
        deadline = time.monotonic() + 60.0
        while min(logs, heard) < ENOUGH:
            assert time.monotonic() < deadline, (logs, heard)
            hook.recorder.log({"main": 1.0, "x": torch.tensor(0.5)})
            logs += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    hook.recorder.close({})

    header = hook.reader.read_header()
    assert header.own_errors == 0
    assert header.sequence > logs


def test_a_log_inside_a_log_is_said_afterwards(hook):
    class Talkative(dict):
        def __getitem__(self, key):
            hook.recorder.log({"inner": 1.0})
            return super().__getitem__(key)

    hook.recorder.log(Talkative(outer=1.0))

    assert {"outer": 1.0} in hook.values()


@pytest.mark.quiet
def test_errors_of_ours_are_counted_and_after_twenty_we_are_silent(hook, monkeypatch):
    def fail(*args):
        raise RuntimeError("ours")

    monkeypatch.setattr(hook.recorder, "_log", fail)
    for _ in range(MAX_CLIENT_ERRORS + 30):
        hook.recorder.log({"x": 1.0})

    assert hook.reader.read_header().own_errors == MAX_CLIENT_ERRORS


@pytest.mark.quiet
def test_strict_lets_our_errors_through(tmp_path, monkeypatch):
    strict = Told(tmp_path / "s.ring", strict=True)
    monkeypatch.setattr(strict.recorder, "_log", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        strict.recorder.log({"x": 1.0})


@pytest.mark.quiet
@pytest.mark.parametrize("signal_", [KeyboardInterrupt, SystemExit])
def test_the_guard_never_swallows_a_wish_to_stop(hook, monkeypatch, signal_):
    def stop(*args):
        raise signal_

    monkeypatch.setattr(hook.recorder, "_log", stop)

    with pytest.raises(signal_):
        hook.recorder.log({"x": 1.0})


def test_nothing_is_written_after_the_end(hook):
    hook.recorder.close({})
    hook.recorder.log({"x": 1.0})
    hook.record_step(loss=1.0)

    assert [record.event for record in hook.records()] == [Event.STOP]
