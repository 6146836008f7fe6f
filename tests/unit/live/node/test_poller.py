"""Watch: the newest look wins; one that fails is tried seldom, and one that hangs ages alone."""

from __future__ import annotations

import logging
from itertools import count
from threading import Event

from support.rank_processes import until

from sentinel.live.node.poller import MAX_RETRY_SECONDS, MetricPoller
from sentinel.model.counters import Counters

COUNTED = ("sentinel_node_read_errors_total", "gpu")


def failing():
    raise OSError("no driver")


def test_the_newest_look_wins_and_its_time_is_kept():
    clock = count(100.0, 5.0)
    looks = iter(["first", "second"])
    watch = MetricPoller("gpu", lambda: next(looks), 5.0, Counters(), clock.__next__)

    assert watch.latest is None
    assert watch.poll_once() == 5.0
    assert watch.latest == (100.0, "first")
    watch.poll_once()
    assert watch.latest == (105.0, "second")


def test_a_look_that_fails_is_counted_told_once_and_tried_ever_more_seldom(caplog):
    watch = MetricPoller("gpu", failing, 5.0, tally := Counters())
    with caplog.at_level(logging.INFO):
        waits = [watch.poll_once() for _ in range(2000)]

    assert waits[:4] == [10.0, 20.0, 40.0, 80.0]
    assert waits[-1] == MAX_RETRY_SECONDS
    assert tally.values[COUNTED] == 2000.0
    (told,) = [record.getMessage() for record in caplog.records]
    assert "OSError: no driver" in told


def test_what_can_be_measured_again_is_measured_as_often_as_before():
    watch = MetricPoller("gpu", failing, 5.0, Counters())
    watch.poll_once()
    watch.read = lambda: "well"

    assert watch.poll_once() == 5.0
    assert watch.consecutive_failures == 0


def test_what_was_seen_stays_while_it_cannot_be_seen_again():
    watch = MetricPoller("gpu", lambda: "well", 5.0, Counters(), lambda: 100.0)
    watch.poll_once()
    watch.read = failing
    watch.poll_once()

    assert watch.latest == (100.0, "well")


def test_a_look_that_hangs_holds_nobody():
    """Neither its beginning nor its end is waited for."""
    begun, never = Event(), Event()

    def hang():
        begun.set()
        never.wait()

    watch = MetricPoller("gpu", hang, 5.0, tally := Counters())
    watch.start()
    assert begun.wait(60.0)
    watch.stop()

    assert watch.latest is None
    assert tally.values[COUNTED] == 0.0
    never.set()


def test_it_looks_again_and_again_until_it_is_stopped():
    seen = count()
    watch = MetricPoller("gpu", lambda: next(seen), 0.001, Counters())
    watch.start()
    until(lambda: watch.latest and watch.latest[1] >= 3, 60.0, "several looks")
    watch.stop()
