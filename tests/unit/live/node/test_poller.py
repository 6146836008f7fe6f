"""Watch: the newest look wins; one that fails is tried seldom, and one that hangs ages alone."""

from __future__ import annotations

import logging
from itertools import count
from threading import Event

from support.rank_processes import until

from sentinel.live.node.poller import SELDOM_SECONDS, Watch
from sentinel.model.counters import Tally

COUNTED = ("sentinel_machine_errors_total", "gpu")


def failing():
    raise OSError("no driver")


def test_the_newest_look_wins_and_its_time_is_kept():
    clock = count(100.0, 5.0)
    looks = iter(["first", "second"])
    watch = Watch("gpu", lambda: next(looks), 5.0, Tally(), clock.__next__)

    assert watch.newest is None
    assert watch.once() == 5.0
    assert watch.newest == (100.0, "first")
    watch.once()
    assert watch.newest == (105.0, "second")


def test_a_look_that_fails_is_counted_told_once_and_tried_ever_more_seldom(caplog):
    watch = Watch("gpu", failing, 5.0, tally := Tally())
    with caplog.at_level(logging.INFO):
        waits = [watch.once() for _ in range(2000)]

    assert waits[:4] == [10.0, 20.0, 40.0, 80.0]
    assert waits[-1] == SELDOM_SECONDS
    assert tally.counts[COUNTED] == 2000.0
    (told,) = [record.getMessage() for record in caplog.records]
    assert "OSError: no driver" in told


def test_what_can_be_measured_again_is_measured_as_often_as_before():
    watch = Watch("gpu", failing, 5.0, Tally())
    watch.once()
    watch.look = lambda: "well"

    assert watch.once() == 5.0
    assert watch.failures == 0


def test_what_was_seen_stays_while_it_cannot_be_seen_again():
    watch = Watch("gpu", lambda: "well", 5.0, Tally(), lambda: 100.0)
    watch.once()
    watch.look = failing
    watch.once()

    assert watch.newest == (100.0, "well")


def test_a_look_that_hangs_holds_nobody():
    """Neither its beginning nor its end is waited for."""
    begun, never = Event(), Event()

    def hang():
        begun.set()
        never.wait()

    watch = Watch("gpu", hang, 5.0, tally := Tally())
    watch.start()
    assert begun.wait(60.0)
    watch.stop()

    assert watch.newest is None
    assert tally.counts[COUNTED] == 0.0
    never.set()


def test_it_looks_again_and_again_until_it_is_stopped():
    seen = count()
    watch = Watch("gpu", lambda: next(seen), 0.001, Tally())
    watch.start()
    until(lambda: watch.newest and watch.newest[1] >= 3, 60.0, "several looks")
    watch.stop()
