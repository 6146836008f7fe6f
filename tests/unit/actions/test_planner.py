"""Tests of the action planner: when a case triggers a command, and what it commands."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from math import inf

import pytest
from support.command_rings import Node
from support.notifications import make_notification

from sentinel.actions import planner
from sentinel.actions.planner import MIN_LEAD_SECONDS, MIN_LEAD_SECONDS_OF_NODES
from sentinel.client.control.command_executor import CommandExecutor
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentKey
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store import commands
from sentinel.store.commands import ActionRequest
from sentinel.store.database import connect
from sentinel.store.silences import Acknowledgement, Silence, Suppression
from sentinel.transport.command_page import (
    INCIDENT_WORD,
    Command,
    CommandPage,
    open_or_create,
)
from sentinel.transport.identity import Identity

NOW = time.time()
HEARTBEAT = Record("run", WHOLE_RUN, 0, NOW, Event.HEARTBEAT)


@pytest.fixture
def make_node(tmp_path):
    """Returns a function that creates the node of the test."""
    nodes = []

    def make(**settings):
        nodes.append(Node(tmp_path, **settings))
        return nodes[-1]

    yield make
    nodes[0].stack.close()


def make_case(
    detector="kl_blowup", episode=1, severity=Severity.CRITICAL, reason=NotificationReason.OPENED
):
    notification = make_notification()
    key = IncidentKey("run", WHOLE_RUN, detector)
    incident = replace(notification.incident, key=key, episode=episode, severity=severity)
    return replace(notification, incident=incident, reason=reason)


def start(attempt=0, **attributes):
    record = Record("run", WHOLE_RUN, 0, NOW, Event.START, attributes=attributes, attempt=attempt)
    return Result(record)


def plan(node, notification=None):
    """Pass a case to the planner; return the note that its notification gets."""
    notification = notification or make_case()
    node.planner.update(Result(HEARTBEAT, case_notifications=(notification,)))
    return commands.command_note(node.connection, notification.incident.name)


def test_a_critical_case_triggers_a_command_ahead_of_the_fastest_rank(make_node):
    node = make_node(ranks=2)
    node.run(40, seconds=40)
    node.run(1, seconds=1, rank=1)

    note = plan(node)
    assert node.read_commands() is None
    node.planner.poll()

    request = node.read_commands()
    assert (request.ready_from_index, request.due_step_index) == (41, 51)
    assert (request.actions, request.case) == ({"checkpoint"}, "run/kl_blowup#1")
    assert note == "A checkpoint was requested for step 51."
    assert node.rows() == [("run/kl_blowup#1", 1, 51)]


@pytest.mark.parametrize(
    ("steps", "seconds", "lead"),
    [(20, 20, 10), (20, 0.2, 200), (20, 1200, 3), (20, 100, 4)],
    ids=["1 s", "10 ms", "60 s", "5 s"],
)
def test_the_lead_is_two_seconds_and_ten_steps_unless_steps_are_long(
    make_node, steps, seconds, lead
):
    node = make_node()
    node.run(steps, seconds)
    plan(node)
    node.planner.poll()

    request = node.read_commands()
    assert request.due_step_index - request.ready_from_index == pytest.approx(
        lead, abs=1 + lead // 50
    )


def test_a_clock_set_back_gives_the_maximum_lead(make_node):
    node = make_node()
    node.run(20, seconds=-3600)
    plan(node)
    node.planner.poll()

    assert node.read_commands().due_step_index == 30


def test_the_lead_counts_published_steps(make_node):
    node = make_node()
    for _ in range(6):
        writer = node.writers[0]
        writer.publish_step(writer.step + 10, writer.step_index + 10, writer.time + 1.0)
        node.planner.poll()
    plan(node)
    node.planner.poll()

    request = node.read_commands()
    assert (request.ready_from_index, request.due_step_index) == (60, 160)


def test_one_case_triggers_one_command(make_node):
    node = make_node()
    node.run(20, seconds=20)
    plan(node)
    node.run(40, seconds=40)
    plan(node, make_case(reason=NotificationReason.ESCALATED))
    node.planner.poll()

    assert len(node.rows()) == 1
    assert node.read_commands().number == 1


def test_a_second_case_shares_the_command_under_way(make_node):
    node = make_node()
    node.run(20, seconds=20)
    plan(node)
    node.run(2, seconds=2)
    note = plan(node, make_case("nan_or_inf"))
    node.planner.poll()
    assert note == "A checkpoint was requested for step 30."
    assert node.read_commands().number == 1

    node.run(20, seconds=20)
    plan(node, make_case("reward_collapse"))
    node.planner.poll()
    assert node.read_commands().number == 2
    assert [number for _, number, _ in node.rows()] == [1, 1, 2]


@pytest.mark.parametrize(
    "notification",
    [
        make_case(severity=Severity.WARNING),
        make_case(reason=NotificationReason.RESOLVED),
        make_case("run_died"),
        make_case("run_stalled"),
    ],
    ids=["warning", "resolved", "run_died", "run_stalled"],
)
def test_other_notifications_trigger_no_command(make_node, notification):
    node = make_node()
    node.run(20, seconds=20)

    assert plan(node, notification) == ""
    assert node.rows() == []


def test_without_actions_nothing_is_commanded(make_node):
    node = make_node(actions=())
    node.run(20, seconds=20)

    assert plan(node) == ""
    assert node.rows() == []


def test_a_silenced_or_acknowledged_case_triggers_no_command(make_node):
    node = make_node()
    node.run(20, seconds=20)
    node.suppression = Suppression(silences=(Silence("kl_blowup", NOW, NOW + 60),))
    assert plan(node) == ""
    node.suppression = Suppression(
        acks={"run/kl_blowup#1": Acknowledgement("run/kl_blowup#1", Severity.CRITICAL, NOW)}
    )
    assert plan(node) == ""

    node.suppression = Suppression()
    for later in (NotificationReason.UPDATED, NotificationReason.RESOLVED):
        joined = replace(make_case(reason=later), others=(make_case().incident,))
        assert plan(node, joined) == "", "a notification that is not sent stops no run"


def test_an_escalated_case_triggers_a_command_despite_an_acknowledged_warning(make_node):
    node = make_node()
    node.run(20, seconds=20)
    warning = make_case("reward_collapse", severity=Severity.WARNING).incident
    escalated = replace(make_case(reason=NotificationReason.ESCALATED), others=(warning,))
    node.suppression = Suppression(
        acks={warning.name: Acknowledgement(warning.name, Severity.WARNING, NOW)}
    )

    assert plan(node, escalated) != ""


def test_shadow_mode_sends_no_command_and_states_it_once(make_node):
    node = make_node(ranks=2, is_shadow=True)
    node.run(40, seconds=40)

    note = plan(node)
    node.planner.poll()
    assert note == "Shadow mode: a checkpoint would have been requested for step 50."
    assert node.read_commands() is None
    node.run(5, seconds=5)
    assert plan(node) == note
    assert commands.shadow_stop_step(node.connection, make_case().incident.name) is None


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"ranks": 2, "world": 4, "command_problem": "rank 2 is away"}, "rank 2 is away"),
        ({"has_page": False}, "its ranks have no readable command page"),
    ],
)
def test_an_impossible_command_is_refused_with_the_reason(make_node, settings, refusal):
    node = make_node(**settings)
    node.run(20, seconds=20)
    note = plan(node)
    node.planner.poll()

    assert note.startswith(f"No command was sent to the run, because {refusal}")
    assert node.rows() == [("run/kl_blowup#1", None, None)]
    plan(node)
    assert len(node.rows()) == 1


def test_a_command_for_several_nodes_is_announced_until_it_is_over(make_node):
    node = make_node(ranks=2, world=4)
    node.run(40, seconds=40)
    assert node.planner.announced_command() is None
    plan(node)

    announced = node.planner.announced_command()
    node.planner.poll()
    assert announced == node.read_commands()
    assert Command.from_json(json.loads(json.dumps(announced.to_json()))) == announced
    node.run(9, seconds=9)
    assert node.planner.announced_command() == announced
    node.run(1, seconds=1)
    assert node.planner.announced_command() is None


def test_a_command_for_several_nodes_leaves_time_to_reach_them(make_node):
    node = make_node(ranks=2, world=4)
    node.run(400, seconds=4)
    plan(node)
    lead = node.planner.announced_command().due_step_index - 400
    assert lead == pytest.approx(100 * MIN_LEAD_SECONDS_OF_NODES, abs=1)


def test_an_announced_command_is_written_once(make_node):
    node = make_node(ranks=2, world=4)
    node.run(20, seconds=20)
    command = Command(7, 20, 30, frozenset({"stop"}), "run/nan_or_inf#1")
    for _ in range(2):
        node.planner.receive(command)
    assert node.read_commands() == command
    node.planner.receive(command._replace(number=6, due_step_index=40))
    assert node.read_commands() == command
    node.run(20, seconds=20)
    node.planner.receive(command._replace(number=8))
    assert node.read_commands() == command, "the run has passed that step"


def test_an_announced_command_waits_for_the_page_of_the_ranks(make_node):
    node = make_node(ranks=2, world=4, has_page=False)
    node.run(20, seconds=20)
    command = Command(7, 20, 30, frozenset({"stop"}), "run/nan_or_inf#1")
    node.planner.receive(command)
    open_or_create(node.page).close()
    node.planner.receive(command)
    assert node.read_commands() == command


@pytest.mark.parametrize(
    "change", [{"number": -1}, {"number": 1 << 63}, {"number": "1"}, {"due_step_index": True}]
)
def test_an_announcement_with_other_numbers_is_refused(change):
    fields = Command(7, 20, 30, frozenset({"stop"})).to_json()
    with pytest.raises(ValueError, match="No numbers of a command"):
        Command.from_json(fields | change)


def test_unknown_actions_of_an_announcement_are_left_out():
    fields = Command(7, 20, 30, frozenset({"stop"})).to_json()
    assert Command.from_json(fields | {"actions": ["stop", "format"]}).actions == {"stop"}


def test_a_missing_rank_makes_a_command_impossible(make_node):
    node = make_node(ranks=2)
    node.run(20, seconds=20)
    node.readers.pop()

    assert "not every rank of it is monitored" in plan(node)


def test_a_finished_run_gets_no_command(make_node):
    node = make_node()
    node.run(20, seconds=20)
    node.writers[0].close("finished")

    assert plan(node) == ""
    node.readers.clear()
    assert plan(node) == ""
    assert node.rows() == []


def test_after_a_restart_the_stored_command_is_written_once(make_node):
    node = make_node()
    node.run(20, seconds=20)
    plan(node)
    node.begin()
    plan(node)
    node.planner.poll()
    assert len(node.rows()) == 1
    written = node.read_commands()
    assert (written.number, written.ready_from_index, written.due_step_index) == (1, 20, 30)

    node.begin()
    node.run(20, seconds=20)
    assert node.read_commands() == written


def test_after_a_restart_a_command_for_a_passed_step_is_dropped(make_node):
    node = make_node()
    node.run(20, seconds=20)
    plan(node)
    node.begin()
    node.writers[0].publish_step(30, 30, NOW)
    node.planner.poll()

    assert node.read_commands() is None


def test_after_a_lost_database_the_number_continues_from_the_page(make_node):
    node = make_node()
    node.run(20, seconds=20)
    plan(node)
    node.run(20, seconds=20)
    node.connection.execute("delete from command")
    node.begin()
    node.run(2, seconds=2)
    plan(node)
    node.planner.poll()

    assert node.read_commands().number == 2


def test_the_number_of_firing_incidents_is_on_the_command_page(make_node):
    """Measurements in the trainer read it there, without any configured action."""
    node, firing = make_node(ranks=2, actions=()), [0]
    node.begin(lambda: firing[0])
    executor = CommandExecutor()
    executor.attach(CommandPage(node.page), Identity("run", 0, 1, 1, 2, 2))
    seen = [executor.firing_incidents]

    for count in (2, 1, 0):
        firing[0] = count
        node.run(2, seconds=2)
        seen.append(executor.firing_incidents)

    assert seen == [0, 2, 1, 0]
    executor.close()
    assert executor.firing_incidents == 0


def test_firing_incidents_are_published_again_to_a_new_page(make_node):
    node = make_node()
    node.begin(lambda: 3)
    node.page.unlink()
    node.run(1, seconds=1)
    open_or_create(node.page).close()
    node.begin(lambda: 3)
    node.run(1, seconds=1)

    with closing(CommandPage(node.page)) as page:
        assert page.words[INCIDENT_WORD] == 3


def test_the_actions_of_the_start_record_override_the_setting(make_node):
    node = make_node()
    node.planner.update(start(**{"monitor/on_critical": "stop call"}))
    assert node.planner.actions == {"stop", "call"}
    node.planner.update(start())
    assert node.planner.actions == {"stop", "call"}

    node.run(20, seconds=20)
    assert plan(node) == "A stop and a call of your function were requested for step 30."
    node.planner.update(start(**{"monitor/on_critical": ""}))
    assert node.planner.actions == frozenset()


def test_the_actions_of_an_attempt_do_not_apply_to_the_next(make_node):
    node = make_node()
    node.planner.update(start(**{"monitor/on_critical": "stop call"}))
    node.planner.update(start(attempt=1))

    assert node.planner.actions == {"checkpoint"}


@pytest.fixture(autouse=True)
def measured_at_once(monkeypatch):
    monkeypatch.setattr(planner, "MEASURING_SECONDS", 0.0)


def test_without_configured_actions_the_speed_is_measured_for_a_request(make_node, monkeypatch):
    node = make_node(actions=())
    node.run(10, seconds=100)
    ask(node, "stop")
    monkeypatch.setattr(planner, "MEASURING_SECONDS", inf)
    node.run(100, seconds=1)
    assert outcome(node) == (None, None)
    monkeypatch.setattr(planner, "MEASURING_SECONDS", 0.0)
    node.planner.poll()

    step, _ = outcome(node)
    assert step - node.writers[0].step == pytest.approx(100 * MIN_LEAD_SECONDS, abs=1)


def ask(node, action, name="request/1"):
    """Store a request as another process does."""
    with closing(connect(node.folder / "sentinel.db")) as connection:
        commands.store_request(connection, ActionRequest(name, frozenset({action}), "asked"))


def outcome(node, name="request/1"):
    return commands.outcome(node.connection, name)


def test_a_request_of_another_process_is_planned_without_configured_actions(make_node):
    node = make_node(ranks=2, actions=())
    node.run(40, seconds=40)
    ask(node, "stop")
    node.planner.poll()

    command = node.read_commands()
    assert (command.actions, command.case, command.cause) == ({"stop"}, "request/1", "asked")
    assert outcome(node) == (command.due_step_index, None)


def test_a_request_that_is_impossible_is_refused_with_the_reason(make_node):
    node = make_node(world=4, actions=(), command_problem="rank 2 is away")
    node.run(5, seconds=5)
    ask(node, "checkpoint")
    node.planner.poll()

    assert outcome(node) == (None, "rank 2 is away")
    assert node.read_commands() is None


def test_what_a_command_under_way_does_not_include_waits_until_it_is_over(make_node):
    node = make_node(actions=("stop",))
    node.run(40, seconds=40)
    ask(node, "checkpoint")
    node.planner.poll()
    first = node.read_commands()
    note = plan(node)
    node.planner.poll()

    assert node.read_commands() == first
    assert note == "A stop was requested."
    node.run(12, seconds=12)
    second = node.read_commands()
    assert (second.actions, second.case) == ({"stop"}, "run/kl_blowup#1")
    assert second.due_step_index > first.due_step_index


def test_a_request_that_a_command_under_way_includes_shares_it(make_node):
    node = make_node()
    node.run(40, seconds=40)
    plan(node)
    node.planner.poll()
    ask(node, "checkpoint")
    node.planner.poll()

    assert outcome(node) == (node.read_commands().due_step_index, None)
    assert node.read_commands().number == 1


def test_a_request_of_before_the_start_of_the_agent_is_too_old(make_node):
    node = make_node(actions=())
    node.run(40, seconds=40)
    ask(node, "stop")
    node.begin()
    node.planner.poll()

    assert node.read_commands() is None
    assert outcome(node) == (None, None)


def test_a_request_for_a_run_that_has_ended_is_refused(make_node):
    node = make_node(actions=())
    node.run(40, seconds=40)
    for writer in node.writers:
        writer.close("finished")
    ask(node, "stop")
    node.planner.poll()

    assert outcome(node)[1] == "no rank of it trains on this node"
