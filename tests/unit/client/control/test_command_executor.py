"""Commands are executed at their step, and no error in them reaches the training."""

from __future__ import annotations

import pytest
from support.command_rank import CommandRank

import sentinel
from sentinel.client.control.command_executor import CommandContext
from sentinel.client.session import CurrentSession
from sentinel.model.record import Event
from sentinel.transport.command_page import command_page_path


@pytest.fixture
def rank(tmp_path):
    return CommandRank(tmp_path / "0-0.ring")


def outcomes(rank):
    return [r.attributes["on_critical"] for r in rank.records() if "on_critical" in r.attributes]


def test_a_loop_gets_a_checkpoint_at_one_step_and_a_stop_from_then_on(rank):
    rank.send(1, 4)

    requested = [rank.step() for _ in range(6)]

    assert requested == [frozenset()] * 3 + [{"checkpoint", "stop"}, {"stop"}, {"stop"}]


def test_a_loop_that_asks_late_gets_the_actions_at_the_first_step_it_asks_at(rank):
    rank.send(1, 4)
    for _ in range(6):
        rank.recorder.begin_backward()
        rank.loop.complete_step({})
    requested = rank.recorder.commands.requested

    assert [requested(6), requested(6), requested(7)] == [{"checkpoint", "stop"}] * 2 + [{"stop"}]


def test_the_users_function_is_called_at_the_step_with_the_context(tmp_path):
    calls = []
    rank = CommandRank(
        tmp_path / "0-0.ring", lambda context: calls.append((context, rank.loop.begun_steps))
    )
    rank.send(1, 4)
    for _ in range(8):
        rank.step()

    actions = frozenset({"checkpoint", "stop"})
    assert calls == [(CommandContext(actions, "run/kl_blowup#1", "Too high a rate", 4), 0)]
    phases = [r.attributes["edge"] for r in rank.records() if r.event is Event.PHASE]
    assert phases == ["begin", "end"]
    assert outcomes(rank) == ["call, checkpoint, stop at step 4, for run/kl_blowup#1"]


@pytest.mark.swallows_errors
def test_an_error_of_the_users_function_is_counted_and_training_continues(tmp_path):
    def fails(context):
        raise ValueError("secret")

    rank = CommandRank(tmp_path / "0-0.ring", fails)
    rank.send(1, 3)
    requested = [rank.step() for _ in range(5)]

    assert requested[2] == {"checkpoint", "stop"}
    assert rank.reader.read_header().errors == 1
    attributes = {name: text for r in rank.records() for name, text in r.attributes.items()}
    assert attributes["on_critical/error"] == "ValueError"
    assert "secret" not in str(attributes)
    assert rank.recorder.clock.step_index == 5


def test_an_interrupt_in_the_users_function_reaches_the_trainer(tmp_path):
    def leaves(context):
        raise SystemExit(3)

    rank = CommandRank(tmp_path / "0-0.ring", leaves)
    rank.send(1, 3)
    rank.step()
    rank.step()
    with pytest.raises(SystemExit):
        rank.step()


def test_a_loop_that_only_logs_acts_at_the_same_step(tmp_path):
    """Logs on the fast path do not poll for commands."""
    contexts = []
    rank = CommandRank(tmp_path / "0-0.ring", contexts.append)
    log, requested = rank.recorder.log, rank.recorder.commands.requested
    for step in range(1, 101):
        log({"loss": 1.0}, step)
    rank.send(100, 110)
    # As if half a second had passed.
    rank.recorder.poller.next_poll_at = 0.0
    actions_by_step = {}
    for step in range(101, 121):
        log({"loss": 1.0}, step)
        if actions := requested(rank.recorder.clock.step_index):
            actions_by_step[step] = actions

    assert [context.step for context in contexts] == [110]
    assert actions_by_step[110] == {"checkpoint", "stop"}
    assert set(actions_by_step) == set(range(110, 121))


def test_actions_taken_by_a_framework_are_not_requested_of_the_loop(rank):
    rank.recorder.commands.framework_handles = True
    rank.send(1, 3)
    popped = []
    for step in range(1, 6):
        rank.recorder.begin_backward()
        rank.loop.complete_step({})
        popped.append(rank.recorder.commands.pop_actions(step))

    none = frozenset()
    assert popped == [none, none, {"checkpoint", "stop"}, none, none]
    assert rank.recorder.commands.requested(5) == none


def test_a_command_that_an_interrupted_framework_left_is_executed_at_the_next_step(tmp_path):
    contexts = []
    rank = CommandRank(tmp_path / "0-0.ring", contexts.append)
    rank.recorder.commands.framework_handles = True
    rank.send(1, 3)
    requested = [rank.step() for _ in range(5)]

    assert [context.step for context in contexts] == [4]
    assert requested[2] == {"checkpoint", "stop"}


def test_a_command_that_came_too_late_is_skipped_and_reported(rank):
    for _ in range(5):
        rank.step()
    rank.send(1, 5)

    assert [rank.step() for _ in range(3)] == [frozenset()] * 3
    assert outcomes(rank) == [
        "nothing at step 6: not every rank was ready to call, checkpoint, stop"
    ]


def test_a_second_command_is_executed_too(rank):
    rank.send(1, 3, frozenset({"checkpoint"}))
    first = [rank.step() for _ in range(5)]
    rank.send(5, 8, frozenset({"checkpoint"}), number=2)
    second = [rank.step() for _ in range(5)]

    assert [at for at, actions in enumerate(first + second, 1) if actions] == [3, 8]


def test_without_a_command_page_nothing_is_requested(tmp_path):
    command_page_path(tmp_path / "0-0.ring", 0).mkdir()
    rank = CommandRank(tmp_path / "0-0.ring")

    assert rank.recorder.commands.page is None
    assert [rank.step() for _ in range(3)] == [frozenset()] * 3


def test_outside_a_run_nothing_is_requested():
    assert CurrentSession.recorder is None
    assert sentinel.requested() == frozenset()


def test_in_a_run_requested_returns_the_actions_of_the_recorder(tmp_path):
    with sentinel.monitor(run="commanded", agent=False, strict=True):
        recorder = CurrentSession.recorder
        recorder.commands._open_actions = frozenset({"stop"})
        assert sentinel.requested() == {"stop"}
        assert recorder.commands.page is not None
    assert recorder.commands.page is None
