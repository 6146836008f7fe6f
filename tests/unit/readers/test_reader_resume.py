"""A reader continues where another one stopped, if the last row was held back."""

from __future__ import annotations

import os

import pytest
from support.clocks import FakeClock
from support.event_files import event, event_file, framed
from support.followed_logs import make_follower, step_attempts


@pytest.fixture
def clock():
    return FakeClock(1.8e9)


def test_a_second_reader_continues_a_deepspeed_directory(tmp_path, clock):
    folder = tmp_path / "job"
    folder.mkdir()

    def log(*steps):
        for name in ("train_loss", "lr"):
            file = folder / f"Train_Samples_{name}.csv"
            head = "" if file.exists() else f"step,{name}\n"
            with file.open("a") as into:
                into.write(head + "".join(f"{step},0.5\n" for step in steps))

    log(8, 16, 24)
    source = make_follower(folder, clock)
    assert step_attempts(source.poll()) == [(8, 0), (16, 0)]
    log(32, 40)
    source = make_follower(folder, clock, source.positions())
    assert step_attempts(source.poll()) == [(24, 0), (32, 0)]
    clock.now += 60.0
    assert step_attempts(source.poll()) == [(40, 0)]
    source = make_follower(folder, clock, source.positions())
    assert step_attempts(source.poll()) == []
    log(48, 56)
    assert step_attempts(source.poll()) == [(48, 0)]


def test_a_paused_tensorboard_run_is_not_a_new_attempt(tmp_path, clock):
    """Its last row was yielded after a pause, and is held back when it is read again."""
    path = event_file(tmp_path / "run", *(event(s, "loss", 2.0) for s in (1, 2, 3)))
    os.utime(path, (clock.now, clock.now))
    source = make_follower(path, clock)
    assert step_attempts(source.poll()) == [(1, 0), (2, 0)]
    clock.now += 60.0
    assert step_attempts(source.poll()) == [(3, 0)]
    for _ in range(2):
        source = make_follower(path, clock, source.positions())
        assert step_attempts(source.poll()) == []
        clock.now += 60.0
        assert step_attempts(source.poll()) == []
    with path.open("ab") as file:
        file.write(framed(event(4, "loss", 2.0)) + framed(event(5, "loss", 2.0)))
    assert step_attempts(source.poll()) == [(4, 0)]
