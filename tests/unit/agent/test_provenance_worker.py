"""The provenance is read once an attempt, beside the loop, and again until torch is loaded."""

from __future__ import annotations

import threading

import pytest
from support.rank_processes import until

from sentinel.agent import provenance_worker
from sentinel.agent.provenance_worker import ProvenanceWorker


class FakeReader:
    """Answers from a list of packages, one a read."""

    def __init__(self, packages, gate=None):
        self.packages, self.gate, self.pids = packages, gate, []

    def read(self, pid, stopping):
        self.pids.append(pid)
        if self.gate is not None:
            self.gate.wait(60)
        yield {"command": f"train {pid}"}
        yield self.packages.pop(0)

    def read_packages(self, _pid):
        return self.packages.pop(0)


@pytest.fixture(autouse=True)
def times(monkeypatch):
    monkeypatch.setattr(provenance_worker, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(provenance_worker, "PACKAGE_RETRY_SECONDS", (0.01, 0.01))


def make(reader, attempts, pids=None):
    stored = {}
    pids = {1: 11, 0: 10} if pids is None else pids
    worker = ProvenanceWorker(reader, lambda: attempts[-1], lambda: pids, stored.update)
    return worker, stored


def test_the_lowest_rank_is_read_once_for_each_attempt():
    attempts, reader = [0], FakeReader([{"torch": "2.9"}, {"torch": "2.10"}])
    worker, stored = make(reader, attempts)

    until(lambda: worker.poll() or stored.get("torch") == "2.9", 60, "a version")
    worker.poll()
    assert reader.pids == [10]
    attempts.append(1)
    until(lambda: worker.poll() or stored["torch"] == "2.10", 60, "the next version")
    worker.stop()

    assert stored == {"command": "train 10", "torch": "2.10"}
    assert reader.pids == [10, 10]


def test_packages_are_read_again_until_torch_is_loaded():
    worker, stored = make(FakeReader([{}, {"numpy": "2"}, {"torch": "2.9"}]), [0])

    until(lambda: worker.poll() or "torch" in stored, 60, "a version")

    assert stored["numpy"] == "2"
    worker.stop()


def test_nothing_is_read_without_a_rank():
    reader = FakeReader([])
    worker, stored = make(reader, [0], pids={})

    worker.poll()
    worker.stop()

    assert reader.pids == []
    assert stored == {}


def test_a_reader_that_hangs_delays_neither_the_loop_nor_the_end():
    gate = threading.Event()
    worker, stored = make(FakeReader([{"torch": "1"}], gate), [0])

    worker.poll()
    worker.poll()
    worker.stop(timeout=0.01)

    assert stored == {}
    gate.set()
