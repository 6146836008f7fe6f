"""Tests of the checks of runs on several nodes."""

from __future__ import annotations

import time
from importlib import import_module

import pytest

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cluster import torch_store
from sentinel.cluster.authentication import (
    REFUSAL_REASONS,
    MessageAuthenticator,
    RefusedMessageError,
)
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint, head_endpoint
from sentinel.cluster.server import ClusterServer
from sentinel.cluster.sockets import NoFreePortError, bind_first_free_port
from sentinel.cluster.torch_store import MessageStoreError, TorchStore
from sentinel.doctor.check_result import Grade
from sentinel.doctor.nodes import READ_LOG_REMEDY, REFUSAL_REMEDIES, check_nodes, remedy_for
from sentinel.doctor.runs import check_runs
from sentinel.model.counters import Counters
from sentinel.transport.rendezvous import NO_RENDEZVOUS

AUTHENTICATOR = MessageAuthenticator.for_job("right", "job")
METADATA = {"world_size": 4.0, "local_world_size": 2.0}


def node(host, ranks, state="up", silent=0.0, skew=0.0):
    return {
        "host": host,
        "ranks": ranks,
        "state": state,
        "silent_seconds": silent,
        "skew_seconds": skew,
    }


def head(*known, port=14007, error_text="", refused=None, active=True):
    cluster = {"role": "head", "port": port, "error": error_text, "nodes": [*known]}
    cluster["head"] = f"gpu-a:{port}"
    return {"cluster": cluster, "metadata": METADATA, "refused": refused or {}, "active": active}


def follower(*, connected=True, error_text="", refused=None, silent=0.0, at="gpu-a:14007"):
    cluster = {"role": "follower", "head": at, "connected": connected, "error": error_text}
    cluster |= {"spooled_bytes": 3_000_000 if silent else 0, "silent_seconds": silent}
    return {"cluster": cluster, "metadata": METADATA, "refused": refused or {}}


BOTH = node("gpu-a", [0, 1]), node("gpu-b", [2, 3])


def summaries(state):
    return [(r.grade, r.subject, r.message) for r in check_nodes("two", state)]


def test_a_head_with_all_nodes_is_ok():
    assert summaries(head(*BOTH)) == [
        (Grade.OK, "run two, nodes", "head of 2 nodes, listening at gpu-a:14007")
    ]


@pytest.mark.parametrize(
    ("address", "interface"), [("10.0.0.1", "the interface 10.0.0.1"), ("", "all interfaces")]
)
def test_a_head_without_a_token_is_a_warning_with_its_interface(address, interface):
    state = head(*BOTH)
    state["cluster"] |= {"has_token": False, "listen_address": address}
    (_, result) = check_nodes("two", state)

    assert (result.grade, result.subject) == (Grade.WARN, "run two, token")
    assert f"listens on {interface} without a token" in result.message
    assert "[cluster] token" in result.remedy
    state["cluster"]["has_token"] = True
    assert len(summaries(state)) == 1


def test_a_connected_follower_is_ok_and_names_its_head():
    assert summaries(follower()) == [
        (Grade.OK, "run two, nodes", "follower of the head at gpu-a:14007")
    ]


@pytest.mark.parametrize("cluster", [{}, {"role": ""}, {"role": "single"}])
def test_a_run_on_one_node_has_no_result(cluster):
    one = {"world_size": 2.0, "local_world_size": 2.0}

    assert summaries({"cluster": cluster, "metadata": one}) == []
    assert summaries({}) == []


def test_a_node_that_is_lost_is_named_with_its_ranks():
    lost = node("gpu-b", [2, 3], "lost", silent=95.0)
    (_, result) = check_nodes("two", head(BOTH[0], lost))

    assert (result.grade, result.subject) == (Grade.FAIL, "run two, node gpu-b")
    assert result.message == "no message for 1 min 35 s (ranks 2-3)"


@pytest.mark.parametrize(("skew", "expected"), [(7200.0, "2 h behind"), (-30.0, "30 s ahead")])
def test_a_clock_skew_is_a_warning(skew, expected):
    (_, result) = check_nodes("two", head(BOTH[0], node("gpu-b", [2, 3], skew=skew)))

    assert (result.grade, expected in result.message) == (Grade.WARN, True)


def test_a_small_clock_skew_is_ignored():
    assert len(summaries(head(BOTH[0], node("gpu-b", [2, 3], skew=4.9)))) == 1


def test_ranks_without_data_fail_while_the_run_is_active():
    (_, summary) = summaries(head(BOTH[0]))

    assert summary == (
        Grade.FAIL,
        "run two, nodes",
        "no data from 2 ranks (2-3)",
    )
    assert len(summaries(head(BOTH[0], active=False))) == 1


def test_an_unconnected_follower_reports_reason_duration_and_buffer():
    error_text = "No answer at gpu-a:14007 (timed out)."
    (result,) = check_nodes("two", follower(connected=False, error_text=error_text, silent=600.0))

    assert result.grade is Grade.FAIL
    assert result.message == (
        f"the head at gpu-a:14007 has been unreachable for 10 min: {error_text} "
        "2.9 MiB of records are buffered"
    )
    assert "14000 to 17999" in result.remedy


def test_an_isolated_node_fails():
    (result,) = check_nodes("two", {"cluster": {"role": "single"}, "metadata": METADATA})

    assert (result.grade, "never reached" in result.message) == (Grade.FAIL, True)


def test_a_head_that_cannot_listen_fails():
    state = head(
        *BOTH, port=0, error_text="torch is not installed in the environment of the agent."
    )
    (result,) = check_nodes("two", state)

    assert (result.grade, "install torch" in result.remedy) == (Grade.FAIL, True)


def test_every_rejection_reason_has_a_remedy():
    assert set(REFUSAL_REMEDIES) == set(REFUSAL_REASONS)


@pytest.mark.parametrize("reason", REFUSAL_REASONS)
def test_rejected_messages_are_reported_with_their_count(reason):
    (_, result) = check_nodes("two", head(*BOTH, refused={reason: 3.0}))

    thing = {"foreign_key": "key", "foreign_connection": "connection", "flood": "flood"}.get(
        reason, "message"
    )
    assert result.message == f"3 {thing}s rejected: {reason}"
    assert (result.grade, result.remedy) == (Grade.WARN, REFUSAL_REMEDIES[reason])


@pytest.mark.parametrize("reason", ["token", "version"])
def test_a_rejection_that_excludes_a_node_fails(reason):
    grades = {result.grade for result in check_nodes("two", head(BOTH[0], refused={reason: 1.0}))}
    follower_results = [
        *check_nodes("two", follower(connected=False, error_text="It.", refused={reason: 1.0}))
    ]

    assert Grade.FAIL in grades
    assert follower_results[-1].grade is Grade.FAIL


def unanswered_connection():
    with pytest.raises(MessageStoreError) as error:
        # The discard port has no listener.
        TorchStore.connect("127.0.0.1", 9)
    return str(error.value)


def no_free_port():
    with bind_first_free_port((0,)) as taken, pytest.raises(NoFreePortError) as error:
        bind_first_free_port((taken.getsockname()[1],))
    return str(error.value)


def refused_message(message):
    with pytest.raises(RefusedMessageError) as error:
        AUTHENTICATOR.verify("card", message)
    return str(error.value)


def unknown_head_address():
    client = ClusterClient(lambda: HeadEndpoint("", (14000,)), AUTHENTICATOR, {}, Counters())
    before = client.error
    client.start()
    try:
        deadline = time.monotonic() + 60.0
        while client.error == before and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        client.stop()
    return client.error


def wrong_port():
    with pytest.raises(ValueError, match="port") as error:
        head_endpoint(NO_RENDEZVOUS, "gpu-a:many")
    return str(error.value)


ERRORS = {
    "firewall": (unanswered_connection, "14000 to 17999"),
    "ports": (no_free_port, "a port that is free"),
    "token": (
        lambda: refused_message(
            MessageAuthenticator.for_job("refused_message", "job").sign("card", b"")
        ),
        "SENTINEL_CLUSTER__TOKEN",
    ),
    "version": (lambda: refused_message(b"\0" * 40), "same version"),
    "nowhere": (unknown_head_address, "SENTINEL_CLUSTER__HEAD"),
    "setting": (wrong_port, "SENTINEL_CLUSTER__HEAD"),
    "begun": (lambda: ClusterClient(dict, AUTHENTICATOR, {}, Counters()).error, "in a few seconds"),
    "opened": (lambda: ClusterServer((1,), AUTHENTICATOR, Counters()).error, "in a few seconds"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_each_real_error_message_has_its_remedy(kind):
    make_error, remedy = ERRORS[kind]

    assert remedy in remedy_for(make_error())


def test_an_agent_without_torch_has_a_remedy(monkeypatch):
    def absent(name):
        if name.startswith("torch"):
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(torch_store, "import_module", absent)
    with bind_first_free_port((0,)) as listener, pytest.raises(MessageStoreError) as error:
        TorchStore.host(listener)

    assert "install torch" in remedy_for(str(error.value))


def test_an_unknown_error_refers_to_the_log():
    assert remedy_for("KeyError: 7") == READ_LOG_REMEDY


def test_node_results_are_part_of_the_run_results(monkeypatch, tmp_path):
    path = tmp_path / "two" / "agent.json"
    served = DiscoveredRun("two", "http://127.0.0.1:9", {"state": "running"} | follower())
    monkeypatch.setattr("sentinel.doctor.runs.registration_files", lambda: [path])
    monkeypatch.setattr("sentinel.doctor.runs.query_agent", lambda *_: served)

    assert "follower of the head at gpu-a:14007" in [result.message for result in check_runs()]
