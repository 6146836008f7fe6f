"""What is asked of a rank is done at its step, and no error of it reaches training."""

from __future__ import annotations

import pytest
from support.command_rank import Asking

import sentinel
from sentinel.client.control.command_executor import CommandContext
from sentinel.client.session import CurrentSession
from sentinel.model.record import Event
from sentinel.transport.command_page import command_page_path


@pytest.fixture
def told(tmp_path):
    return Asking(tmp_path / "0-0.ring")


def test_a_loop_is_told_of_a_checkpoint_at_one_step_and_of_a_stop_from_then_on(told):
    told.ask(1, 4)

    seen = [told.step() for _ in range(6)]

    assert seen == [frozenset()] * 3 + [{"checkpoint", "stop"}, {"stop"}, {"stop"}]


def test_a_loop_that_asks_late_is_told_at_the_first_step_it_asks_at(told):
    told.ask(1, 4)
    for _ in range(6):
        told.recorder.begins()
        told.loop.step({})
    asked = told.recorder.errands.requested

    assert [asked(6), asked(6), asked(7)] == [{"checkpoint", "stop"}] * 2 + [{"stop"}]


def test_the_users_function_is_called_at_the_step_with_what_is_known(tmp_path):
    calls = []
    told = Asking(tmp_path / "0-0.ring", lambda asked: calls.append((asked, told.loop.begun_steps)))
    told.ask(1, 4)
    for _ in range(8):
        told.step()

    words = frozenset({"checkpoint", "stop"})
    assert calls == [(CommandContext(words, "run/kl_blowup#1", "Too high a rate", 4), 0)]
    phases = [r.attributes["edge"] for r in told.records() if r.event is Event.PHASE]
    assert phases == ["begin", "end"]
    said = [r.attributes["on_critical"] for r in told.records() if "on_critical" in r.attributes]
    assert said == ["call, checkpoint, stop at step 4, for run/kl_blowup#1"]


@pytest.mark.quiet
def test_an_error_of_the_users_function_is_counted_and_told_and_training_goes_on(tmp_path):
    def fails(asked):
        raise ValueError("secret")

    told = Asking(tmp_path / "0-0.ring", fails)
    told.ask(1, 3)
    seen = [told.step() for _ in range(5)]

    assert seen[2] == {"checkpoint", "stop"}
    assert told.reader.read_header().errors == 1
    facts = {name: fact for r in told.records() for name, fact in r.attributes.items()}
    assert facts["on_critical/error"] == "ValueError"
    assert "secret" not in str(facts)
    assert told.recorder.clock.step_index == 5


def test_an_interrupt_in_the_users_function_is_the_trainers(tmp_path):
    def leaves(asked):
        raise SystemExit(3)

    told = Asking(tmp_path / "0-0.ring", leaves)
    told.ask(1, 3)
    told.step()
    told.step()
    with pytest.raises(SystemExit):
        told.step()


def test_a_loop_of_which_only_the_log_is_seen_acts_at_the_same_step(tmp_path):
    """However many logs take the short way, which looks at nothing."""
    calls = []
    told = Asking(tmp_path / "0-0.ring", calls.append)
    log, asked = told.recorder.log, told.recorder.commands.requested
    for step in range(1, 101):
        log({"loss": 1.0}, step)
    told.ask(100, 110)
    # As when half a second has passed.
    told.recorder._next_poll_at = 0.0
    seen = {}
    for step in range(101, 121):
        log({"loss": 1.0}, step)
        if words := asked(told.recorder.clock.step_index):
            seen[step] = words

    assert [each.step for each in calls] == [110]
    assert seen[110] == {"checkpoint", "stop"}
    assert set(seen) == set(range(110, 121))


def test_a_framework_takes_it_and_the_loop_is_told_of_nothing(told):
    told.recorder.errands.framework_handles = True
    told.ask(1, 3)
    taken = []
    for step in range(1, 6):
        told.recorder.begins()
        told.loop.step({})
        taken.append(told.recorder.errands.pop_actions(step))

    none = frozenset()
    assert taken == [none, none, {"checkpoint", "stop"}, none, none]
    assert told.recorder.errands.requested(5) == none


def test_what_a_framework_that_was_broken_off_left_behind_is_done_at_the_next_step(tmp_path):
    calls = []
    told = Asking(tmp_path / "0-0.ring", calls.append)
    told.recorder.commands.framework_handles = True
    told.ask(1, 3)
    seen = [told.step() for _ in range(5)]

    assert [each.step for each in calls] == [4]
    assert seen[2] == {"checkpoint", "stop"}


def test_what_came_too_late_is_let_pass_and_told_so(told):
    for _ in range(5):
        told.step()
    told.ask(1, 5)

    assert [told.step() for _ in range(3)] == [frozenset()] * 3
    said = [r.attributes["on_critical"] for r in told.records() if "on_critical" in r.attributes]
    assert said == ["nothing at step 6: not every rank was ready to call, checkpoint, stop"]


def test_the_next_request_is_heard_as_well(told):
    told.ask(1, 3, frozenset({"checkpoint"}))
    first = [told.step() for _ in range(5)]
    told.ask(5, 8, frozenset({"checkpoint"}), number=2)
    second = [told.step() for _ in range(5)]

    assert [at for at, words in enumerate(first + second, 1) if words] == [3, 8]


def test_where_no_page_can_be_made_nothing_is_ever_asked(tmp_path):
    command_page_path(tmp_path / "0-0.ring", 0).mkdir()
    told = Asking(tmp_path / "0-0.ring")

    assert told.recorder.commands.page is None
    assert [told.step() for _ in range(3)] == [frozenset()] * 3


def test_outside_a_run_nothing_is_requested():
    assert CurrentSession.recorder is None
    assert sentinel.requested() == frozenset()


def test_in_a_run_the_public_word_says_what_the_recorder_knows(tmp_path):
    with sentinel.monitor(run="asked", agent=False, strict=True):
        recorder = CurrentSession.recorder
        recorder.commands._open_actions = frozenset({"stop"})
        assert sentinel.requested() == {"stop"}
        assert recorder.commands.page is not None
    assert recorder.commands.page is None
