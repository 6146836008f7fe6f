"""Sample watch: files are read beside the loop, and a disk that hangs holds nobody up."""

from __future__ import annotations

from threading import Event
from time import monotonic, sleep

import pytest

from sentinel.model.record import Event as What
from sentinel.model.record import Record
from sentinel.readers import sample_files
from sentinel.readers.sample_files import MAX_FILES_AHEAD, SamplePoller


class Files:
    """Files as SampleFiles reads them, one a poll; while `hangs`, a poll does not return."""

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
        return [Record("run", 0, step, 100.0, What.SAMPLE, attempt=attempt)]

    def pop_fingerprints(self):
        taken, self.marks = self.marks, {}
        return taken


@pytest.fixture
def watching(monkeypatch):
    monkeypatch.setattr(sample_files, "IDLE_SECONDS", 0.005)
    made = []

    def make(*steps):
        made.append(SamplePoller(Files(*steps)))
        return made[-1]

    yield make
    for watch in made:
        watch.files.works.set()
        watch.stop()


def until(condition):
    deadline = monotonic() + 60.0
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


def test_texts_come_with_their_marks_and_the_attempt_of_whoever_takes_them(watching):
    watch, found = watching(7, 8), []
    until(lambda: found.extend(watch.poll(3)) or len(found) == 2)

    assert [(record.step, record.attempt) for record in found] == [(7, 3), (8, 3)]
    assert watch.pop_fingerprints() == {"7.jsonl": "mark", "8.jsonl": "mark"}
    assert watch.pop_fingerprints() == {}


def test_a_disk_that_hangs_holds_nobody_up(watching):
    """The loop polls on; once the disk answers, the texts are there."""
    watch, found = watching(7), []
    watch.files.works.clear()
    assert [watch.poll(0) for _ in range(100)] == [[]] * 100

    watch.files.works.set()
    until(lambda: found.extend(watch.poll(0)) or found)
    assert [record.step for record in found] == [7]


def test_no_more_is_read_ahead_than_a_loop_that_is_busy_can_take(watching):
    watch = watching(*range(50))
    watch.poll(0)
    until(lambda: watch._results.qsize() >= MAX_FILES_AHEAD)

    # One may have been taken at once.
    assert watch.files.polls <= MAX_FILES_AHEAD + 1


def test_after_the_end_nothing_is_read(watching):
    watch = watching()
    watch.poll(0)
    watch.stop()
    until(lambda: not watch._thread.is_alive())
    before = watch.files.polls
    watch.files.steps.append(7)

    assert watch.poll(0) == []
    assert watch.files.polls == before
