"""Tests of the service that replaces an agent whose storage failed."""

from __future__ import annotations

import sqlite3

import pytest

from sentinel.agent.run_service import MAX_REPLACEMENTS, RunService
from sentinel.store.storage_monitor import FailureKind, StorageFailure


class FakeAgent:
    """Fails `failures` times in a row, then serves until it is finished."""

    def __init__(self, log, failures):
        self.log, self.failures = log, failures

    def serve(self):
        if len(self.log) <= self.failures:
            raise StorageFailure(FailureKind.DAMAGED, sqlite3.DatabaseError("malformed"))

    def request_stop(self, signal_name):
        self.log.append(signal_name)


def build_service(monkeypatch, failures):
    """A service, the predecessors of its agents, and the delays before them."""
    predecessors, delays = [], []

    def build(_, predecessor):
        predecessors.append(predecessor)
        return FakeAgent(predecessors, failures)

    service = RunService(build)
    monkeypatch.setattr(service._stop_requested, "wait", delays.append)
    return service, predecessors, delays


def test_a_failed_agent_is_replaced_at_once_and_the_next_ones_later(monkeypatch):
    service, predecessors, delays = build_service(monkeypatch, failures=8)
    service.serve()

    assert len(predecessors) == 9
    assert predecessors[0] is None
    assert None not in predecessors[1:]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_too_many_failures_in_a_row_end_the_process(monkeypatch):
    service, predecessors, _ = build_service(monkeypatch, failures=1000)
    with pytest.raises(StorageFailure):
        service.serve()

    assert len(predecessors) == MAX_REPLACEMENTS + 1


def test_a_stop_that_was_requested_meanwhile_reaches_the_next_agent(monkeypatch):
    service, predecessors, _ = build_service(monkeypatch, failures=0)
    service.request_stop("SIGTERM")
    service.prepare()

    assert predecessors == [None, "SIGTERM"]
