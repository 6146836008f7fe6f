"""Gathering: what rank 0 asks of its group as it ends, however many ranks there are."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sentinel.client.collective import chunk
from sentinel.client.collective.gather_group import GatherGroup

WORLD = 1000


class Group:
    """Of gloo's, what is asked: a receipt, which is refused where the other's process is gone."""

    def __init__(self, *_):
        self.opened, self.gone = [], set()

    def recv(self, _, other, tag):
        if other in self.gone:
            raise RuntimeError("Connection closed by peer")
        self.opened.append((other, tag))


@pytest.fixture
def rank_0(monkeypatch):
    distributed = SimpleNamespace(
        PrefixStore=lambda *_: None, ProcessGroupGloo=Group, GatherOptions=SimpleNamespace
    )
    torch = SimpleNamespace(
        distributed=distributed,
        float64=None,
        frombuffer=lambda memory, dtype: memory,
        inference_mode=lambda mode: nullcontext(),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    ours = GatherGroup(None, 0, WORLD)
    ours._group.opened.clear()
    return ours


def leave(gathering, rank):
    chunk.encode_into(gathering._final_buffers[rank], 1, [b"bye"], 0, 1)


def test_one_who_is_there_is_answer_enough(rank_0):
    rank_0._group.gone = {1, 2}
    leave(rank_0, 3)
    for _ in range(5):
        assert rank_0.has_live_peers()

    assert {other for other, _ in rank_0._group.opened} == {4}
    assert len(rank_0._group.opened) == 5


def test_it_is_alone_once_all_have_left_or_are_gone(rank_0):
    for rank in range(1, WORLD, 2):
        leave(rank_0, rank)
    rank_0._group.gone = {*range(2, WORLD, 2)} - {500}
    assert rank_0.has_live_peers()
    rank_0._group.gone.add(500)

    assert not rank_0.has_live_peers()
    assert len(rank_0._group.opened) == 1


def test_those_that_are_gone_are_told_and_asked_for_no_more(rank_0):
    rank_0._group.gone = {5, 7}
    assert rank_0.lost(range(1, WORLD)) == [5, 7]
    rank_0._group.gone = set()

    assert rank_0.lost([4, 5, 6, 7]) == [5, 7]


def test_last_words_are_read_once_and_stay(rank_0):
    leave(rank_0, 2)
    first = rank_0.final_chunks()[2]
    leave(rank_0, 9)

    assert rank_0.final_chunks()[2] is first
    assert [*rank_0.final_chunks()] == [2, 9]
    assert first.payloads == [b"bye"]
