"""Tests of the cause node_down."""

from __future__ import annotations

import pytest
from support.aligned_steps import combine_step
from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.node_down import NodeDown
from sentinel.model.diagnosis import CaseContext, Symptom
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record

METADATA = {"framework": "transformers"}


def heartbeat(time, step, *, lost=True, idle=12.0, silent=12.0, **machine):
    values = {
        "ranks_running": 2.0 if lost else 4.0,
        "ranks_gone": 0.0,
        "ranks_failed": 0.0,
        "idle_seconds": idle,
        "nodes": 2.0,
        "nodes_lost": float(lost),
        "lost_seconds": silent if lost else 0.0,
        **machine,
    }
    attributes = {"lost_ranks": "2,3" if lost else "", "lost_nodes": "node-1" if lost else ""}
    if lost and idle + 5 >= silent:
        attributes |= {"straggler_ranks": "2,3", "blocked_by": "node_lost"}
    else:
        attributes |= {"straggler_ranks": "0"}
    return Record("run", WHOLE_RUN, step, time, Event.HEARTBEAT, values, attributes)


def steps(first, last):
    for step in range(first, last + 1):
        yield combine_step(step, step_time=[1.0] * 4, data_wait=[0.01] * 4, tokens=[1000.0] * 4)


def stalled(step, seconds=400):
    return (
        heartbeat(step + 12.0 + s, step, idle=12.0 + s, silent=12.0 + s) for s in range(seconds)
    )


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        (Event.SAVE, "and resume from the last checkpoint with another node"),
        (Event.EVAL, "and start the run again with another node"),
    ],
)
def test_the_run_is_resumed_if_there_is_a_checkpoint_else_started_again(event, advice):
    last = Record("run", WHOLE_RUN, 150, 150.5, event)
    replay = diagnose_run([*steps(1, 150), last, *stalled(150)], METADATA)

    (case,) = replay.cases.values()
    assert advice in case.diagnosis.remedy


def test_a_node_that_is_down_is_named():
    replay = diagnose_run([*steps(1, 150), *stalled(150)], METADATA)

    assert replay.causes == ["node_down"]
    assert [notification.reason for notification in replay.notifications] == [
        NotificationReason.OPENED
    ]
    (case,) = replay.cases.values()
    assert "happened to node-1" in case.diagnosis.remedy
    assert case.incident.severity is Severity.CRITICAL


def test_earlier_gpu_errors_are_part_of_the_case():
    failing = heartbeat(150.0, 150, lost=False, idle=0.5, gpu_xid=79.0)
    replay = diagnose_run([*steps(1, 150), failing, *stalled(151)], METADATA)

    assert replay.causes == ["node_down"]
    (case,) = replay.cases.values()
    assert {each.key.detector for each in case.incidents} == {"gpu_fault", "node_lost"}
    assert "Test its GPU" in case.diagnosis.remedy


def test_a_lost_agent_of_a_continuing_run_has_no_cause():
    continuing = [heartbeat(151.0 + s, 151 + s, idle=0.5, silent=12.0 + s) for s in range(60)]
    replay = diagnose_run([*steps(1, 150), *continuing], METADATA)

    assert replay.causes == [""]
    assert [notification.incident.severity for notification in replay.notifications] == [
        Severity.WARNING
    ]


@pytest.mark.parametrize("name", sorted(NodeDown.explains - {"node_lost"}))
def test_without_a_lost_node_there_is_no_evidence(name):
    assert list(NodeDown().evidence(make_context(**{name: 10}))) == []


def test_symptoms_after_the_loss_are_no_evidence():
    lost = Symptom("node_lost", Severity.CRITICAL, 100, 100, "Node b is silent.")
    late = Symptom("gpu_fault", Severity.WARNING, 150, 150, "A GPU fails.")
    found = diagnose(CaseContext({"node_lost": lost, "gpu_fault": late}), {"node_down": NodeDown()})

    assert len(found.evidence) == 1
