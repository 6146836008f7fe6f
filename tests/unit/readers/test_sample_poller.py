"""SamplePoller reads in its own thread, so a hanging disk blocks nothing."""

from __future__ import annotations

from threading import Event
from time import monotonic, sleep

import pytest

from sentinel.model.record import Event as EventType
from sentinel.model.record import Record
from sentinel.readers import sample_files
from sentinel.readers.sample_files import MAX_FILES_AHEAD, SamplePoller


class FakeSampleFiles:
    """A fake of SampleFiles with one file per poll, which waits while `works` is clear."""

    def __init__(self, *steps):
        self.steps, self.marks, self.polls = list(steps), {}, 0
        self.works = Event()
        self.works.set()

    def poll(self, attempt):
        self.works.wait()
        self.polls += 1
        if not self.steps:
            return []
        step = self.steps.pop(0)
        self.marks[f"{step}.jsonl"] = "mark"
        return [Record("run", 0, step, 100.0, EventType.SAMPLE, attempt=attempt)]

    def pop_fingerprints(self):
        taken, self.marks = self.marks, {}
        return taken


@pytest.fixture
def make_poller(monkeypatch):
    monkeypatch.setattr(sample_files, "IDLE_SECONDS", 0.005)
    pollers = []

    def make(*steps):
        pollers.append(SamplePoller(FakeSampleFiles(*steps)))
        return pollers[-1]

    yield make
    for poller in pollers:
        poller.files.works.set()
        poller.stop()


def until(condition):
    deadline = monotonic() + 60.0
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


def test_records_have_the_attempt_of_the_poll_and_fingerprints(make_poller):
    poller, records = make_poller(7, 8), []
    until(lambda: records.extend(poller.poll(3)) or len(records) == 2)

    assert [(record.step, record.attempt) for record in records] == [(7, 3), (8, 3)]
    assert poller.pop_fingerprints() == {"7.jsonl": "mark", "8.jsonl": "mark"}
    assert poller.pop_fingerprints() == {}


def test_a_hanging_disk_does_not_block_the_poll(make_poller):
    """Polls return nothing until the disk answers."""
    poller, records = make_poller(7), []
    poller.files.works.clear()
    assert [poller.poll(0) for _ in range(100)] == [[]] * 100

    poller.files.works.set()
    until(lambda: records.extend(poller.poll(0)) or records)
    assert [record.step for record in records] == [7]


def test_reading_ahead_is_limited(make_poller):
    poller = make_poller(*range(50))
    poller.poll(0)
    until(lambda: poller._results.qsize() >= MAX_FILES_AHEAD)

    # One may have been taken at once.
    assert poller.files.polls <= MAX_FILES_AHEAD + 1


def test_nothing_is_read_after_stop(make_poller):
    poller = make_poller()
    poller.poll(0)
    poller.stop()
    until(lambda: not poller._thread.is_alive())
    before = poller.files.polls
    poller.files.steps.append(7)

    assert poller.poll(0) == []
    assert poller.files.polls == before
