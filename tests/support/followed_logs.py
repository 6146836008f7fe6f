"""A log that a test appends to, and its follower."""

from __future__ import annotations

import json

from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.readers.follow import LogFollower


def append_rows(path, *rows):
    """Append rows as JSON lines."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def loss_rows(begin, end, loss=None, **values):
    return [{"step": s, "loss": loss or 3.0 / s**0.5, **values} for s in range(begin, end)]


def make_follower(path, clock, positions=None, **settings):
    """A follower of the run `mine`; `settings` are further arguments of `LogFollower`."""
    return LogFollower("mine", path, Counters(), positions or {}, clock, **settings)


def step_attempts(records):
    """Step and attempt of each training step among the records."""
    return [(r.step, r.attempt) for r in records if r.event is Event.STEP]


def next_heartbeat(source, clock, after=1.0):
    """The heartbeat of a poll, `after` seconds later."""
    clock.now += after
    (heartbeat,) = [record for record in source.poll() if record.event is Event.HEARTBEAT]
    return heartbeat
