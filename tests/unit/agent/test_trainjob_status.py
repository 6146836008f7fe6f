"""The status of a Kubeflow TrainJob, sent to a server as that of Kubeflow Trainer."""

from __future__ import annotations

import copy
from math import inf, nan

import pytest
from programs import free_port
from support.json_server import JsonServer
from support.rank_processes import until

from sentinel.agent.trainjob_status import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    TrainJobStatus,
    trainer_status,
)

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/grpo-7b/status"
STATE = {
    "step": 250,
    "steps": 50,
    "started": 1000.0,
    "last_step_time": 1100.0,
    "metadata": {"max_steps": 1000.0},
    "patches": {"torch": {"on": [0]}},
    "signals": {
        "loss": {"value": 1.23456789},
        "reward": {"value": nan},
        "gpu_power": {"value": 700.0},
    },
    "cases": [{}],
}


def test_a_status_has_progress_remaining_time_and_finite_signals():
    """A run that was resumed at step 200: a step takes two seconds."""
    assert trainer_status(STATE) == {
        "progressPercentage": 25,
        "estimatedRemainingSeconds": 1500,
        "metrics": [
            {"name": "loss", "value": "1.23457"},
            {"name": "open_cases", "value": "1"},
        ],
    }


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"metadata": {}}, {"progressPercentage", "estimatedRemainingSeconds"}),
        ({"metadata": {"max_steps": "many"}}, {"progressPercentage", "estimatedRemainingSeconds"}),
        ({"metadata": {"max_steps": inf}}, {"progressPercentage", "estimatedRemainingSeconds"}),
        ({"last_step_time": nan}, {"estimatedRemainingSeconds"}),
        ({"last_step_time": 900.0}, {"estimatedRemainingSeconds"}),
    ],
)
def test_what_is_not_known_is_left_out(change, missing):
    assert trainer_status(STATE).keys() - trainer_status(STATE | change).keys() == missing


def test_the_progress_stays_between_0_and_100():
    beyond = trainer_status(STATE | {"step": 1200})
    assert (beyond["progressPercentage"], beyond["estimatedRemainingSeconds"]) == (100, 0)
    assert trainer_status(STATE | {"step": -1})["progressPercentage"] == 0


@pytest.mark.parametrize("change", [{"steps": 0}, {"patches": {"transformers": {"on": [0]}}}])
def test_there_is_no_status_before_a_step_or_of_a_trainer_that_reports_itself(change):
    assert trainer_status(STATE | change) == {}


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    return {TOKEN_VARIABLE: str(tmp_path / "token")}


def test_a_changed_status_is_sent_with_the_token(environ):
    state = copy.deepcopy(STATE)
    with JsonServer({}) as server:
        sender = TrainJobStatus(
            environ | {URL_VARIABLE: server.url + PATH}, lambda: state, lambda: True, 0.01
        )
        sender.start()
        until(lambda: server.requests, 60.0, "the first status")
        state["step"] = 500
        until(lambda: len(server.requests) == 2, 60.0, "the second status")
        state["step"] = 1000
        sender.stop()
        sent = list(server.requests)

    assert [each.json["trainerStatus"]["progressPercentage"] for each in sent] == [25, 50, 100]
    assert {(each.path, each.headers["Authorization"]) for each in sent} == {
        (PATH, "Bearer s3cret")
    }
    assert sent[0].json["trainerStatus"]["lastUpdatedTime"].endswith("Z")


def test_nothing_is_sent_by_other_nodes_or_outside_a_trainjob(environ):
    with JsonServer({}) as server:
        for url, is_head in ((server.url + PATH, False), ("", True)):
            sender = TrainJobStatus(
                environ | {URL_VARIABLE: url}, lambda: STATE, lambda is_head=is_head: is_head, 0.01
            )
            sender.start()
            sender.stop()

        assert server.requests == []


def test_a_server_that_fails_is_logged_once_without_the_token(environ, caplog):
    url = f"http://127.0.0.1:{free_port()}{PATH}?s3cret"
    sender = TrainJobStatus(environ | {URL_VARIABLE: url}, lambda: STATE, lambda: True, 0.01)
    tries = []
    send = sender._send
    sender._send = lambda status: tries.append(status) or send(status)
    sender.start()
    until(lambda: len(tries) >= 3, 60.0, "three tries")
    sender.stop()

    (line,) = caplog.messages
    assert line == "The status of the TrainJob cannot be sent (ConnectionError)"
