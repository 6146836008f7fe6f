"""Tests of the worker that estimates onsets in the background."""

from __future__ import annotations

import threading

import pytest
from support.rank_processes import until

from sentinel.agent.onset_worker import OnsetWorker
from sentinel.model.incident import Onset
from sentinel.pipeline.onset_request import OnsetRequest

TIMEOUT_SECONDS = 60.0
FIRST = OnsetRequest("run/kl_blowup#1", 122, ((1, 1.0),))
SECOND = OnsetRequest("run/loss_plateau#1", 140, ((1, 2.0),))


def onset_of(request):
    return Onset(request.suspected_step, request.suspected_step - 1, request.suspected_step)


@pytest.fixture
def start():
    workers = []

    def start(estimate, **options):
        workers.append(OnsetWorker(estimate, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(TIMEOUT_SECONDS)


def answers(worker, count):
    found = []
    until(lambda: found.extend(worker.poll()) or len(found) == count, TIMEOUT_SECONDS, "answers")
    return found


def test_each_request_is_answered_once(start):
    worker = start(lambda requests: [onset_of(each) for each in requests])
    for _ in range(2):
        worker.enqueue([FIRST, SECOND])

    assert answers(worker, 2) == [(FIRST, onset_of(FIRST)), (SECOND, onset_of(SECOND))]
    assert not worker.is_busy
    assert list(worker.poll()) == []


def test_requests_that_come_meanwhile_share_the_next_process(start):
    batches, may_end = [], threading.Event()

    def estimate(requests):
        batches.append(len(requests))
        assert may_end.wait(TIMEOUT_SECONDS)
        return [None] * len(requests)

    worker = start(estimate)
    worker.enqueue([FIRST])
    until(lambda: batches, TIMEOUT_SECONDS, "the first estimate")
    for name in ("b", "c"):
        worker.enqueue([OnsetRequest(name, 1, ())])
    may_end.set()
    answers(worker, 3)

    assert batches == [1, 2]


@pytest.mark.swallows_errors
def test_a_failed_estimate_is_no_estimate_and_does_not_affect_the_next(start):
    def estimate(requests):
        if FIRST in requests:
            raise ValueError
        return [onset_of(each) for each in requests]

    worker = start(estimate)
    worker.enqueue([FIRST])
    assert answers(worker, 1) == [(FIRST, None)]
    worker.enqueue([SECOND])
    assert answers(worker, 1) == [(SECOND, onset_of(SECOND))]


def test_a_stopped_worker_leaves_the_rest_to_the_next_agent(start):
    estimating, cancelled = threading.Event(), threading.Event()

    def estimate(requests):
        estimating.set()
        assert cancelled.wait(TIMEOUT_SECONDS)
        raise OSError

    worker = start(estimate, cancel=cancelled.set)
    worker.enqueue([FIRST])
    assert estimating.wait(TIMEOUT_SECONDS)
    worker.enqueue([SECOND])
    worker.stop(TIMEOUT_SECONDS)

    assert list(worker.poll()) == []
    assert worker.is_busy
