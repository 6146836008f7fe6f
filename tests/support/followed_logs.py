"""A log that a test appends to, and its follower with a fake clock."""

from __future__ import annotations

import json

from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.readers.follow import LogFollower


class Clock:
    now = 1.8e9

    def __call__(self):
        return self.now


def write(path, *rows):
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def losses(begin, end, value=None, **more):
    return [{"step": s, "loss": value or 3.0 / s**0.5, **more} for s in range(begin, end)]


def followed(path, clock, known=None, **settings):
    return LogFollower("mine", path, Counters(), known or {}, clock, **settings)


def steps(records):
    return [(r.step, r.attempt) for r in records if r.event is Event.STEP]


def tick(source, clock, after=1.0):
    clock.now += after
    (last,) = [record for record in source.poll() if record.event is Event.HEARTBEAT]
    return last
