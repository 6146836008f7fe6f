"""Live source: reads the rings of real processes, and notices at once when one of them is gone."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.rank_processes import ranks

from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.transport.paths import ring_path
from sentinel.transport.ring import RingReader


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))


@pytest.fixture
def rank():
    with ranks() as begin:
        yield begin


@pytest.fixture
def source():
    return LiveRings("live", Counters())


def polled(source, until, seconds=60.0):
    """Records of as many polls as it takes for `until` to hold of one of them."""
    records, deadline = [], time.monotonic() + seconds
    while not any(map(until, records)):
        assert time.monotonic() < deadline, f"not seen within {seconds} s: {records[-3:]}"
        records.extend(source.poll())
        time.sleep(0.01)
    return records


def is_tick(record):
    return record.event is Event.HEARTBEAT


def is_stop(record):
    return record.event is Event.STOP


def test_without_a_rank_there_is_nothing_to_say(source):
    assert source.poll() == []
    assert source.attempt == -1


def test_reads_what_each_rank_wrote(source, rank):
    rank(0)
    rank(1)

    records = polled(source, is_tick)
    steps = [(r.rank, r.step, r.values["loss"]) for r in records if r.event is Event.STEP]
    assert steps == [(n, s, 1.0) for n in (0, 1) for s in (1, 2, 3)]


def test_a_tick_tells_who_runs_and_for_how_long_nobody_moved(source, rank):
    rank(0)
    rank(1, steps=2)
    late = time.time() + 40.0
    source.clock = lambda: late

    (tick,) = [r for r in source.poll() if is_tick(r)]
    assert tick.rank == WHOLE_RUN
    assert tick.values["ranks_running"] == 2.0
    assert 40.0 <= tick.values["idle_seconds"] < 400.0
    assert (tick.attributes["state"], tick.attributes["straggler_ranks"]) == ("running", "1")


def test_a_clock_that_is_set_back_forgets_no_time_that_passed(source, rank):
    child = rank(0)
    child.kill()
    child.wait(60.0)
    now = time.time()
    source.clock = lambda: now
    assert any(map(is_stop, source.poll()))
    back = now - 3600.0
    source.clock = lambda: back
    source.poll()

    tick = source.heartbeat(back + 20.0)
    assert (tick.attributes["failed_seconds_ago"], tick.values["idle_seconds"] >= 20.0) == ("20.000", True)


def test_a_trainers_clock_that_is_wrong_does_not_look_like_a_standstill(source, rank):
    rank(0, steps=200, every=0.02, wait=False)
    polled(source, lambda r: r.event is Event.STEP)
    hour = 3600.0
    later = time.time() + hour
    source.clock = lambda: later + time.monotonic()

    ticks = polled(source, lambda r: is_tick(r) and r.step > 100)
    assert ticks[-1].values["idle_seconds"] < hour / 10


def test_a_killed_rank_is_named_with_its_last_step(source, rank):
    child = rank(0)
    polled(source, is_tick)
    os.kill(child.pid, signal.SIGKILL)

    records = polled(source, is_stop)
    (stop,) = filter(is_stop, records)
    assert (stop.rank, stop.step, stop.attributes["outcome"]) == (0, 3, "died")
    assert records[-1].attributes["state"] == "died"
    assert records[-1].attributes["cause"] == "died"
    assert source.ended


def test_a_rank_that_said_goodbye_did_not_die(source, rank):
    child = rank(0, ending="finished")
    polled(source, is_stop)
    child.communicate()
    source.poll()

    tick = source.heartbeat(time.time())
    assert (tick.values["ranks_gone"], tick.attributes["state"]) == (0.0, "finished")


def test_an_exception_is_told_apart_from_a_death(source, rank):
    rank(0, ending="exception")
    rank(1).kill()
    polled(source, lambda r: is_tick(r) and r.values["ranks_gone"] == 1.0)

    tick = source.heartbeat(time.time())
    assert (tick.attributes["failed_ranks"], tick.attributes["died_ranks"]) == ("0", "1")


def test_another_agent_reads_on_where_the_first_was(source, rank):
    """Positions carry the names too: they are not sent again for each reader."""
    child = rank(0)
    before = polled(source, is_tick)
    positions = source.positions()
    child.kill()
    child.wait()

    after = polled(LiveRings("live", Counters(), positions), is_stop)
    assert [r.step for r in before if r.event is Event.STEP] == [1, 2, 3]
    assert [r.event for r in after if not is_tick(r)] == [Event.STOP]


def test_a_restart_is_a_new_attempt(source, rank):
    rank(0).kill()
    polled(source, is_stop)
    rank(0, attempt=1)

    records = polled(source, lambda r: r.event is Event.START)
    assert source.attempt == 1
    assert not source.ended
    assert {r.attempt for r in records if r.event is Event.STEP} == {1}


def test_a_file_that_is_no_ring_is_counted_and_left_alone(source, rank):
    now = time.time()
    ring_path("live", 7, 7).write_bytes(b"not a ring" * 1000)
    for later in (0.0, 6.0, 7.0):
        source.clock = lambda later=later: now + later
        source.poll()

    assert source.counters.values["sentinel_dropped_records_total", "ring_refused"] == 1
    assert ring_path("live", 7, 7).exists()


def test_discards_the_rings_it_read(source, rank):
    rank(0)
    polled(source, is_tick)
    ring = ring_path("live", 0, 0)
    assert RingReader(ring).read_header().last_step == 3

    source.remove_rings()
    assert not ring.parent.exists()
