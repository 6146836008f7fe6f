"""LiveRings reads the rings of real processes and detects their exit."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import closing

import pytest
from support.rank_processes import ranks

import sentinel
from sentinel.live.elastic_restart import ElasticWorker
from sentinel.live.memory_cgroup import MemoryCgroup
from sentinel.live.rings import MAX_POLL_GAP_SECONDS, LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.transport.paths import ring_path
from sentinel.transport.process import Process
from sentinel.transport.ring import RingReader
from sentinel.transport.ring_layout import MAX_CLIENT_ERRORS, WORD_ERRORS


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
    opened = LiveRings("live", Counters())
    yield opened
    opened.close()


def poll_until(source, until, seconds=60.0):
    """Records of all polls until `until` is true for one of them."""
    records, deadline = [], time.monotonic() + seconds
    while not any(map(until, records)):
        assert time.monotonic() < deadline, f"not seen within {seconds} s: {records[-3:]}"
        records.extend(source.poll())
        time.sleep(0.01)
    return records


def is_heartbeat(record):
    return record.event is Event.HEARTBEAT


def is_stop(record):
    return record.event is Event.STOP


def test_without_ranks_there_are_no_records(source):
    assert source.poll() == []
    assert source.attempt == -1


def test_the_records_of_each_rank_are_read(source, rank):
    rank(0)
    rank(1)

    records = poll_until(source, is_heartbeat)
    steps = [(r.rank, r.step, r.values["loss"]) for r in records if r.event is Event.STEP]
    assert steps == [(n, s, 1.0) for n in (0, 1) for s in (1, 2, 3)]


def test_a_heartbeat_reports_running_ranks_and_idle_time(source, rank):
    rank(0)
    rank(1, steps=2)
    late = time.time() + 40.0
    source.clock = lambda: late

    (heartbeat,) = [r for r in source.poll() if is_heartbeat(r)]
    assert heartbeat.rank == WHOLE_RUN
    assert heartbeat.values["ranks_running"] == 2.0
    assert 40.0 <= heartbeat.values["idle_seconds"] < 400.0
    assert (heartbeat.attributes["state"], heartbeat.attributes["straggler_ranks"]) == (
        "running",
        "1",
    )


def test_a_clock_that_is_set_back_preserves_elapsed_times(source, rank):
    child = rank(0)
    child.kill()
    child.wait(240)
    now = time.time()
    source.clock = lambda: now
    assert any(map(is_stop, source.poll()))
    age = float(source.heartbeat(now).attributes["failed_seconds_ago"])
    earlier = now - 3600.0
    source.clock = lambda: earlier
    source.poll()

    heartbeat = source.heartbeat(earlier + 20.0)
    after = float(heartbeat.attributes["failed_seconds_ago"])
    assert (after, heartbeat.values["idle_seconds"] >= 20.0) == (
        pytest.approx(age + 20.0, abs=0.01),
        True,
    )


@pytest.mark.fault("T15", "T17")
def test_time_in_which_the_agent_did_not_look_is_not_idle_time(source, rank):
    """The clock is set forward, or the agent was suspended, for an hour."""
    rank(0)
    child = rank(1)
    now = time.time()
    source.clock = lambda: now
    source.poll()
    idle = source.heartbeat(now).values["idle_seconds"]
    child.kill()
    child.wait(240)
    source.poll()
    ended_at = source.ranks[ring_path("live", 0, 1)].ended_at
    later = now + 3600.0
    source.clock = lambda: later
    source.poll()

    gap = source.heartbeat(later).values["idle_seconds"] - idle
    assert gap == pytest.approx(MAX_POLL_GAP_SECONDS)
    # The order of ends decides which rank failed first.
    assert source.ranks[ring_path("live", 0, 1)].ended_at == ended_at


def test_a_wrong_trainer_clock_is_not_a_stall(source, rank):
    rank(0, steps=200, every=0.02, wait=False)
    poll_until(source, lambda r: r.event is Event.STEP)
    hour = 3600.0
    later = time.time() + hour
    source.clock = lambda: later + time.monotonic()

    heartbeats = poll_until(source, lambda r: is_heartbeat(r) and r.step > 100)
    assert heartbeats[-1].values["idle_seconds"] < hour / 10


def test_a_killed_rank_is_reported_with_its_last_step(source, rank):
    child = rank(0)
    poll_until(source, is_heartbeat)
    os.kill(child.pid, signal.SIGKILL)

    records = poll_until(source, is_stop)
    (stop,) = filter(is_stop, records)
    assert (stop.rank, stop.step, stop.attributes["outcome"]) == (0, 3, "died")
    assert records[-1].attributes["state"] == "died"
    assert records[-1].attributes["cause"] == "died"
    assert source.ended


@pytest.mark.fault("P2")
def test_a_kill_for_want_of_memory_is_reported_as_such(source, rank, tmp_path, monkeypatch):
    """With files in place of a control group, which only root can create."""
    kills, limit = tmp_path / "memory.events", tmp_path / "memory.max"
    kills.write_text("oom_kill 0\n")
    limit.write_text(str(1 << 29))
    group = MemoryCgroup((tmp_path,))
    monkeypatch.setattr(MemoryCgroup, "of_process", lambda *_: group)
    child = rank(0)
    poll_until(source, is_heartbeat)
    kills.write_text("oom_kill 1\n")
    os.kill(child.pid, signal.SIGKILL)

    (stop,) = filter(is_stop, poll_until(source, is_stop))
    assert stop.attributes["oom_kill"] == "yes"
    assert stop.attributes["memory_limit"] == "512 MiB"


def test_a_rank_with_a_stop_record_did_not_die(source, rank):
    child = rank(0, ending="finished")
    poll_until(source, is_stop)
    child.communicate()
    source.poll()

    heartbeat = source.heartbeat(time.time())
    assert (heartbeat.values["ranks_gone"], heartbeat.attributes["state"]) == (0.0, "finished")


def test_a_rank_that_finished_does_not_stall_while_it_is_read(source, monkeypatch):
    """The agent may read the backlog of a fast run for longer than a rank may pause."""
    monkeypatch.setenv("SENTINEL_RUN_ID", "live")
    with sentinel.monitor(agent=False):
        for step in range(2000):
            sentinel.log({"loss": 1.0}, step=step)
    now = time.time()
    heartbeats = []
    for seconds in (0.0, 20.0, 40.0):
        source.clock = lambda at=now + seconds: at
        heartbeats += filter(is_heartbeat, source.poll(max_records=4))

    last = heartbeats[-1]
    assert (last.time, last.attributes["unread_ranks"]) == (now + 40.0, "0")
    assert (last.values["ranks_running"], last.values["inactive_seconds"]) == (1.0, 0.0)


def test_a_rank_that_exits_with_status_0_did_not_die(source, rank):
    """As scripts do with `os._exit(0)`, which runs no code of ours."""
    child = rank(0)
    poll_until(source, is_heartbeat)
    child.communicate()

    records = poll_until(source, is_stop)
    (stop,) = filter(is_stop, records)
    assert stop.attributes == {"outcome": "finished"}
    assert records[-1].attributes["state"] == "finished"
    assert records[-1].values["ranks_gone"] == 0.0


def test_an_exception_differs_from_a_death(source, rank):
    rank(0, ending="exception")
    rank(1).kill()
    poll_until(source, lambda r: is_heartbeat(r) and r.values["ranks_gone"] == 1.0)

    heartbeat = source.heartbeat(time.time())
    assert (heartbeat.attributes["failed_ranks"], heartbeat.attributes["died_ranks"]) == ("0", "1")


def test_a_second_agent_continues_at_the_stored_position(source, rank):
    """Positions hold the names too, since they are not sent again for each reader."""
    child = rank(0)
    before = poll_until(source, is_heartbeat)
    positions = source.positions()
    child.kill()
    child.wait()

    with closing(LiveRings("live", Counters(), positions)) as second:
        after = poll_until(second, is_stop)
    assert [r.step for r in before if r.event is Event.STEP] == [1, 2, 3]
    assert [r.event for r in after if not is_heartbeat(r)] == [Event.STOP]


@pytest.mark.fault("A15")
@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 15),
    reason="the kernel forgets the status of a process that its parent has waited for",
)
def test_how_ranks_ended_while_their_agent_was_replaced_is_known(source, rank):
    children = [rank(0), rank(1)]
    poll_until(source, is_heartbeat)
    source.close()
    for child in children:
        child.terminate()
        child.wait()
    successor = LiveRings("live", Counters(), source.positions(), predecessor=source)
    stops = [r for r in poll_until(successor, is_stop) if is_stop(r)]
    successor.remove_rings()

    assert [(r.rank, r.attributes.get("signal")) for r in stops] == [(0, "SIGTERM"), (1, "SIGTERM")]


@pytest.mark.fault("A15")
def test_what_a_predecessor_knew_of_the_run_is_taken_over(source, rank):
    """The launcher of a rank that has ended meanwhile, and the first signal to stop."""
    child = rank(0)
    poll_until(source, is_heartbeat)
    worker = ElasticWorker(Process.current(), 0)
    source.elastic_restart.workers[0, 0] = worker
    source.request_stop("SIGTERM")
    request = source.stop_request
    assert source.prepare_final_poll() is False
    source.close()
    child.kill()
    child.wait()
    successor = LiveRings("live", Counters(), source.positions(), predecessor=source)
    successor.request_stop("SIGTERM")
    poll_until(successor, lambda r: "elastic_restart" in r.attributes)
    successor.remove_rings()

    assert successor.elastic_restart.workers == {(0, 0): worker}
    assert successor.stop_request == request


def test_a_restart_is_a_new_attempt(source, rank):
    rank(0).kill()
    poll_until(source, is_stop)
    rank(0, attempt=1)

    records = poll_until(source, lambda r: r.event is Event.START)
    assert source.attempt == 1
    assert not source.ended
    assert {r.attempt for r in records if r.event is Event.STEP} == {1}


def test_a_file_that_is_not_a_ring_is_counted_and_not_removed(source, rank):
    now = time.time()
    ring_path("live", 7, 7).write_bytes(b"not a ring" * 1000)
    for later in (0.0, 6.0, 7.0):
        source.clock = lambda later=later: now + later
        source.poll()

    assert source.counters.values["sentinel_dropped_records_total", "ring_refused"] == 1
    assert ring_path("live", 7, 7).exists()


def test_remove_rings_removes_the_rings(source, rank):
    rank(0)
    poll_until(source, is_heartbeat)
    ring = ring_path("live", 0, 0)
    assert RingReader(ring).read_header().last_step == 3

    source.remove_rings()
    assert not ring.exists()


def test_a_disabled_client_hides_no_stall_of_the_others_and_is_not_named(source, rank):
    rank(0)
    rank(1, steps=2)
    with ring_path("live", 0, 1).open("r+b") as ring:
        ring.seek(8 * WORD_ERRORS)
        ring.write(MAX_CLIENT_ERRORS.to_bytes(8, sys.byteorder))
    late = time.time() + 40.0
    source.clock = lambda: late

    (heartbeat,) = [r for r in source.poll() if is_heartbeat(r)]
    assert heartbeat.values["idle_seconds"] >= 40.0
    assert heartbeat.values["ranks_running"] == 2.0
    assert heartbeat.attributes["straggler_ranks"] == "0"
