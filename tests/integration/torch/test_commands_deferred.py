"""Ranks whose steps may not be the same never act, for one alone would wait for ever."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from support.command_rank import Asking

BOTH = frozenset({"checkpoint", "stop"})
NONE = [frozenset()] * 6


@pytest.fixture
def crew(tmp_path):
    return [Asking(tmp_path / f"0-{rank}.ring", place=rank, ranks=2) for rank in (0, 1)]


def stepped(crew, count):
    """What each rank is asked to do after each of so many steps that all take together."""
    seen = [[each.step() for each in crew] for _ in range(count)]
    return [list(told) for told in zip(*seen, strict=True)]


def said(told):
    return [r.facts["on_critical"] for r in told.records() if "on_critical" in r.facts]


def test_ranks_that_step_together_act_together(crew):
    crew[0].ask(1, 4, BOTH)

    first, second = stepped(crew, 6)
    assert first == second == [*NONE[:3], BOTH, {"stop"}, {"stop"}]


def test_a_rank_that_said_more_than_the_other_before_the_first_step_does_not_act_alone(crew):
    """Its beats are ahead of the other's by one, at the very same step."""
    for value in (1.0, 2.0):
        crew[0].recorder.log({"baseline": value})
    crew[0].ask(2, 6, BOTH)

    assert stepped(crew, 6) == [NONE, NONE]
    assert all(text.startswith("nothing at step") for each in crew for text in said(each))


def test_what_both_said_before_the_first_step_does_not_keep_them_from_acting(crew):
    for each in crew:
        for value in (1.0, 2.0):
            each.recorder.log({"baseline": value})
    crew[0].ask(2, 6, BOTH)

    first, second = stepped(crew, 6)
    assert first == second == [*NONE[:4], BOTH, {"stop"}]


def test_a_step_that_is_recorded_late_through_another_thread_is_acted_at_in_time(crew):
    crew[0].ask(1, 4, BOTH)
    stepped(crew, 3)
    # Another thread is inside, and will do what is left aside.
    crew[1].recorder.gate.token.pop()

    assert [each.step() for each in crew] == [BOTH, BOTH]
    crew[1].recorder.gate.token.append(None)
    assert [each.step() for each in crew] == [{"stop"}, {"stop"}]


@pytest.mark.quiet
def test_a_rank_that_an_error_of_ours_may_have_cost_a_step_is_not_ready(crew):
    stepped(crew, 1)
    crew[0].ask(1, 4, BOTH)
    stepped(crew, 1)
    crew[1].recorder.gate.guard.noted(RuntimeError("of a tap"))

    assert stepped(crew, 4) == [NONE[:4], NONE[:4]]


@pytest.mark.quiet
def test_an_error_before_the_first_step_or_of_the_users_function_changes_nothing(tmp_path):
    def fails(asked):
        raise ValueError

    told = Asking(tmp_path / "0-0.ring", fails)
    told.recorder.try_lock.guard.count_error(RuntimeError("of a framework that is not known"))
    told.step()
    told.ask(1, 3)
    stepped([told], 3)
    told.ask(4, 6, BOTH, number=2)

    assert stepped([told], 3) == [[{"stop"}, BOTH, {"stop"}]]


def test_a_process_that_takes_itself_for_alone_and_is_in_a_group_does_not_act(
    tmp_path, monkeypatch
):
    """As a child of `torch.multiprocessing.spawn` that was watched before it joined the group."""
    size = [2]
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: size[0]
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    told = Asking(tmp_path / "0-0.ring")
    told.ask(1, 4, BOTH)
    assert stepped([told], 6) == [NONE]

    size[0] = 1
    told.ask(7, 9, BOTH, number=2)
    assert stepped([told], 3) == [[*NONE[:2], BOTH]]


@pytest.mark.parametrize("numbered", [True, False])
def test_several_ranks_that_only_log_act_where_they_number_their_steps(crew, numbered):
    crew[0].ask(1, 6, BOTH)
    seen = []
    for step in range(1, 8):
        for each in crew:
            each.recorder.log({"loss": 1.0}, step if numbered else None)
            each.recorder._looks_at = 0.0
        seen.append([e.recorder.errands.requested(e.recorder.clock.due_step_index) for e in crew])

    acted = [at for at, words in enumerate(seen, 1) if words == [BOTH, BOTH]]
    assert acted == ([6] if numbered else [])
    assert numbered or seen == [[frozenset()] * 2] * 7
