"""Ranks that may count their steps differently never execute a command.

A rank that saves a checkpoint alone would wait for the others for ever.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from support.command_rank import CommandRank

from sentinel.client.try_lock import CALL

BOTH = frozenset({"checkpoint", "stop"})
NONE = [frozenset()] * 6


@pytest.fixture
def ranks(tmp_path):
    return [CommandRank(tmp_path / f"0-{rank}.ring", local_rank=rank, ranks=2) for rank in (0, 1)]


def step_together(ranks, count):
    """The actions requested of each rank after each of `count` common steps."""
    by_step = [[each.step() for each in ranks] for _ in range(count)]
    return [list(of_rank) for of_rank in zip(*by_step, strict=True)]


def outcomes(rank):
    return [r.attributes["on_critical"] for r in rank.records() if "on_critical" in r.attributes]


def test_ranks_that_step_together_act_together(ranks):
    ranks[0].send(1, 4, BOTH)

    first, second = step_together(ranks, 6)
    assert first == second == [*NONE[:3], BOTH, {"stop"}, {"stop"}]


def test_a_rank_that_logged_more_before_the_first_step_does_not_act_alone(ranks):
    """Its step index is ahead of the other's by one at the same step."""
    for value in (1.0, 2.0):
        ranks[0].recorder.log({"baseline": value})
    ranks[0].send(2, 6, BOTH)

    assert step_together(ranks, 6) == [NONE, NONE]
    assert all(text.startswith("nothing at step") for each in ranks for text in outcomes(each))


def test_equal_logs_before_the_first_step_do_not_prevent_a_command(ranks):
    for each in ranks:
        for value in (1.0, 2.0):
            each.recorder.log({"baseline": value})
    ranks[0].send(2, 6, BOTH)

    first, second = step_together(ranks, 6)
    assert first == second == [*NONE[:4], BOTH, {"stop"}]


def test_a_step_recorded_late_through_another_thread_still_acts_in_time(ranks):
    ranks[0].send(1, 4, BOTH)
    step_together(ranks, 3)
    # Another thread holds the try-lock and will run the deferred calls.
    ranks[1].recorder.try_lock.holder[CALL] = 0.0

    assert [each.step() for each in ranks] == [BOTH, BOTH]
    ranks[1].recorder.try_lock.holder.clear()
    assert [each.step() for each in ranks] == [{"stop"}, {"stop"}]


@pytest.mark.swallows_errors
def test_a_rank_with_an_internal_error_is_not_ready(ranks):
    step_together(ranks, 1)
    ranks[0].send(1, 4, BOTH)
    step_together(ranks, 1)
    ranks[1].recorder.try_lock.guard.count_error(RuntimeError("of a patch"))

    assert step_together(ranks, 4) == [NONE[:4], NONE[:4]]


@pytest.mark.swallows_errors
def test_an_error_before_the_first_step_or_in_the_callback_does_not_matter(tmp_path):
    def fails(context):
        raise ValueError

    rank = CommandRank(tmp_path / "0-0.ring", fails)
    rank.recorder.try_lock.guard.count_error(RuntimeError("of an unknown framework"))
    rank.step()
    rank.send(1, 3)
    step_together([rank], 3)
    rank.send(4, 6, BOTH, number=2)

    assert step_together([rank], 3) == [[{"stop"}, BOTH, {"stop"}]]


def test_a_process_without_launcher_in_a_larger_group_does_not_act(tmp_path, monkeypatch):
    """A child of `torch.multiprocessing.spawn` that was monitored before it joined the group."""
    size = [2]
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: size[0]
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    rank = CommandRank(tmp_path / "0-0.ring")
    rank.send(1, 4, BOTH)
    assert step_together([rank], 6) == [NONE]

    size[0] = 1
    rank.send(7, 9, BOTH, number=2)
    assert step_together([rank], 3) == [[*NONE[:2], BOTH]]


@pytest.mark.parametrize("numbered", [True, False])
def test_ranks_that_only_log_act_if_they_number_their_steps(ranks, numbered):
    ranks[0].send(1, 6, BOTH)
    requested = []
    for step in range(1, 8):
        for each in ranks:
            each.recorder.log({"loss": 1.0}, step if numbered else None)
            each.recorder.poller.next_poll_at = 0.0
        requested.append(
            [e.recorder.commands.requested(e.recorder.clock.step_index) for e in ranks]
        )

    acted = [at for at, actions in enumerate(requested, 1) if actions == [BOTH, BOTH]]
    assert acted == ([6] if numbered else [])
    assert numbered or requested == [[frozenset()] * 2] * 7
