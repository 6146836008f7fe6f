"""Ranks of several nodes agree through the store of their process group: all act, or none."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sentinel.client.control import agreement
from sentinel.client.control.agreement import StoreAgreement
from sentinel.transport.command_page import Command

COMMAND = Command(3, 10, 20, frozenset({"checkpoint"}), "run/kl_blowup#1")
WORD = 3


class Store:
    """The operations of a store of torch.distributed, with its results."""

    def __init__(self):
        self.numbers, self.texts, self.lock = {}, {}, threading.Lock()
        self.error, self.wait = None, lambda: None

    def add(self, key, amount):
        self.wait()
        if self.error is not None:
            raise self.error
        with self.lock:
            self.numbers[key] = self.numbers.get(key, 0) + amount
            return self.numbers[key]

    def compare_set(self, key, expected, desired):
        assert expected == ""
        with self.lock:
            return self.texts.setdefault(key, desired.encode())

    def clone(self):
        return self


@pytest.fixture
def store(monkeypatch):
    store = Store()
    c10d = SimpleNamespace(_get_default_store=lambda: store)
    group = SimpleNamespace(distributed_c10d=c10d)
    monkeypatch.setattr(agreement, "process_group", lambda: group)
    return store


def ranks(count=4, command=COMMAND):
    return [StoreAgreement(command, count) for _ in range(count)]


def test_all_ranks_that_are_ready_act(store):
    four = ranks()
    for rank in four:
        rank.set_ready(WORD, is_ready=True)
        rank.set_ready(WORD, is_ready=True)
    assert [rank.is_reached(WORD) for rank in four] == [True] * 4


@pytest.mark.fault("T18")
def test_no_rank_acts_if_one_becomes_ready_after_the_first_has_decided(store):
    *three, late = ranks()
    for rank in three:
        rank.set_ready(WORD, is_ready=True)
    first = three[0].is_reached(WORD)
    late.set_ready(WORD, is_ready=True)
    assert [first, *(rank.is_reached(WORD) for rank in (*three[1:], late))] == [False] * 4


def test_a_rank_that_withdraws_after_the_decision_acts_with_the_others(store):
    four = ranks()
    for rank in four:
        rank.set_ready(WORD, is_ready=True)
    first = four[0].is_reached(WORD)
    four[3].set_ready(WORD, is_ready=False)
    assert [first, *(rank.is_reached(WORD) for rank in four[1:])] == [True] * 4


def test_no_rank_acts_if_one_withdraws_before_the_decision(store):
    four = ranks()
    for rank in four:
        rank.set_ready(WORD, is_ready=True)
    four[3].set_ready(WORD, is_ready=False)
    assert [rank.is_reached(WORD) for rank in four] == [False] * 4


def test_no_rank_acts_if_one_counts_its_steps_differently(store):
    four = ranks()
    words = [WORD, WORD, WORD, WORD | 1 << 32]
    for rank, word in zip(four, words, strict=True):
        rank.set_ready(word, is_ready=True)
    assert [r.is_reached(word) for r, word in zip(four, words, strict=True)] == [False] * 4


def test_ready_ranks_of_one_command_do_not_count_for_another_of_its_number(store):
    """A node that became head may give a number again."""
    for rank in ranks(command=COMMAND._replace(actions=frozenset({"stop"})))[:3]:
        rank.set_ready(WORD, is_ready=True)
    rank = ranks()[0]
    rank.set_ready(WORD, is_ready=True)
    assert not rank.is_reached(WORD)


@pytest.mark.parametrize("error", [RuntimeError("closed"), ValueError("no group")])
def test_a_store_that_is_gone_stops_no_rank(store, error):
    (rank,) = ranks(1)
    rank.set_ready(WORD, is_ready=True)
    store.error = error
    assert not rank.is_reached(WORD)


def test_a_rank_without_a_process_group_does_not_act(monkeypatch):
    monkeypatch.setattr(agreement, "process_group", lambda: None)
    (rank,) = ranks(1)
    rank.set_ready(WORD, is_ready=True)
    assert not rank.is_reached(WORD)


@pytest.mark.fault("T18")
def test_a_store_that_does_not_answer_is_left_after_a_while(store, monkeypatch):
    """The rank may count for the others by then: it follows their decision if it can read it."""
    monkeypatch.setattr(agreement, "READY_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(agreement, "DECISION_TIMEOUT_SECONDS", 0.05)
    release = threading.Event()
    store.wait = release.wait
    stuck, other = ranks(2)
    stuck.set_ready(WORD, is_ready=True)
    assert not stuck.is_reached(WORD)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "sentinel-agreement":
            thread.join(60)
    other.set_ready(WORD, is_ready=True)
    assert not other.is_reached(WORD)
