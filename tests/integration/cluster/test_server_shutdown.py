"""A hub that leaves stays for as long as whoever it answered last may take to look."""

from __future__ import annotations

import time
from threading import Event
from types import SimpleNamespace

import pytest
from support.message_stores import PATIENCE, awaited, hub, link, welcomed

from sentinel.cluster import server as module


@pytest.fixture
def parting(monkeypatch):
    """How long a hub stayed, which it does until `over` is set."""
    told = SimpleNamespace(seconds=[], over=Event())

    def sleep(seconds):
        told.seconds.append(seconds)
        told.over.wait(PATIENCE)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "FINAL_ACK_SECONDS", PATIENCE)
    yield told
    told.over.set()


@pytest.mark.parametrize("told", [True, False], ids=["already told", "still to be told"])
def test_a_hub_that_leaves_stays_until_its_last_answer_could_be_read(parting, told):
    with hub() as hosted, link(hosted.port) as node:
        slot = welcomed(hosted, node).slot
        hosted.acknowledge(slot, 1, 7)
        if told:
            awaited(lambda: not hosted._pending_acks, "it is told")
        hosted.stop(0.0)

        (seconds,) = awaited(lambda: parting.seconds, "it stays")
        awaited(lambda: node.last_ack.last_row == 7, "the answer is read")
        parting.over.set()

    assert 0.0 < seconds <= PATIENCE


def test_a_hub_that_answered_nobody_leaves_at_once(parting):
    parting.over.set()
    with hub() as hosted:
        hosted.stop(PATIENCE)

    assert parting.seconds == [0.0]
