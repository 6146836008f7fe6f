"""Threads wait for changes without polling."""

from __future__ import annotations

import time
from threading import Timer

import pytest

from sentinel.web.logs.shown_log import Changes


def seconds_of_wait(changes, known, seconds):
    began_at = time.monotonic()
    changes.wait(known, seconds)
    return time.monotonic() - began_at


@pytest.mark.parametrize("end", [Changes.note, Changes.stop])
def test_a_wait_ends_with_a_change_and_with_the_stop(end):
    changes = Changes()
    timer = Timer(0.05, end, [changes])
    timer.start()

    assert 0.04 < seconds_of_wait(changes, changes.count, 240.0) < 120.0
    timer.join()
    # A change that came before the wait counts, and the stop counts for good.
    assert seconds_of_wait(changes, 0, 240.0) < 120.0


def test_a_wait_without_a_change_ends_after_its_time():
    changes = Changes()
    changes.note()

    assert seconds_of_wait(changes, changes.count, 0.05) >= 0.05
