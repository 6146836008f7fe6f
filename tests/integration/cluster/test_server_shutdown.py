"""A stopping server waits for its last acknowledgement to be read."""

from __future__ import annotations

import time
from threading import Event
from types import SimpleNamespace

import pytest
from support.message_stores import (
    TIMEOUT_SECONDS,
    accept_client,
    await_condition,
    running_client,
    running_server,
)

from sentinel.cluster import server as module


@pytest.fixture
def final_wait(monkeypatch):
    """The seconds of each wait of a stopping server; a wait ends when `over` is set."""
    wait = SimpleNamespace(seconds=[], over=Event())

    def sleep(seconds):
        wait.seconds.append(seconds)
        wait.over.wait(TIMEOUT_SECONDS)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "FINAL_ACK_SECONDS", TIMEOUT_SECONDS)
    yield wait
    wait.over.set()


@pytest.mark.parametrize("is_sent", [True, False], ids=["ack sent", "ack pending"])
def test_a_stopping_server_waits_until_its_last_ack_can_be_read(final_wait, is_sent):
    with running_server() as server, running_client(server.port) as node:
        slot = accept_client(server, node).slot
        server.acknowledge(slot, 1, 7)
        if is_sent:
            await_condition(lambda: not server._pending_acks, "the ack is sent")
        server.stop(0.0)

        (seconds,) = await_condition(lambda: final_wait.seconds, "the server waits")
        await_condition(lambda: node.last_ack.last_row == 7, "the ack is read")
        final_wait.over.set()

    assert 0.0 < seconds <= TIMEOUT_SECONDS


def test_a_server_without_acks_stops_at_once(final_wait):
    final_wait.over.set()
    with running_server() as server:
        server.stop(TIMEOUT_SECONDS)

    assert final_wait.seconds == [0.0]
