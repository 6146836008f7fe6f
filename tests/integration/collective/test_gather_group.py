"""What rank 0 asks its gather group at the end, with many ranks."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sentinel.client.collective import chunk
from sentinel.client.collective.gather_group import GatherGroup

WORLD = 1000


class FakeGloo:
    """A gloo group whose `recv` fails if the process of the other rank is gone."""

    def __init__(self, *_):
        self.opened, self.gone = [], set()

    def recv(self, _, other, tag):
        if other in self.gone:
            raise RuntimeError("Connection closed by peer")
        self.opened.append((other, tag))


@pytest.fixture
def rank_0(monkeypatch):
    distributed = SimpleNamespace(
        PrefixStore=lambda *_: None, ProcessGroupGloo=FakeGloo, GatherOptions=SimpleNamespace
    )
    torch = SimpleNamespace(
        distributed=distributed,
        float64=None,
        frombuffer=lambda memory, dtype: memory,
        inference_mode=lambda mode: nullcontext(),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    group = GatherGroup(None, 0, WORLD)
    group._group.opened.clear()
    return group


def send_final_chunk(group, rank):
    chunk.encode_into(group._final_buffers[rank], 1, [b"last"], 0, 1)


def test_one_live_peer_is_enough(rank_0):
    rank_0._group.gone = {1, 2}
    send_final_chunk(rank_0, 3)
    for _ in range(5):
        assert rank_0.has_live_peers()

    assert {other for other, _ in rank_0._group.opened} == {4}
    assert len(rank_0._group.opened) == 5


def test_there_are_no_live_peers_once_all_have_left_or_are_gone(rank_0):
    for rank in range(1, WORLD, 2):
        send_final_chunk(rank_0, rank)
    rank_0._group.gone = {*range(2, WORLD, 2)} - {500}
    assert rank_0.has_live_peers()
    rank_0._group.gone.add(500)

    assert not rank_0.has_live_peers()
    assert len(rank_0._group.opened) == 1


def test_lost_ranks_are_reported_and_stay_lost(rank_0):
    rank_0._group.gone = {5, 7}
    assert rank_0.lost_ranks(range(1, WORLD)) == [5, 7]
    rank_0._group.gone = set()

    assert rank_0.lost_ranks([4, 5, 6, 7]) == [5, 7]


def test_final_chunks_are_read_once_and_kept(rank_0):
    send_final_chunk(rank_0, 2)
    first = rank_0.final_chunks()[2]
    send_final_chunk(rank_0, 9)

    assert rank_0.final_chunks()[2] is first
    assert [*rank_0.final_chunks()] == [2, 9]
    assert first.payloads == [b"last"]
