"""Metrics of the agents of a run on several nodes."""

from __future__ import annotations

import pytest
from support.expositions import samples
from support.results import RUN, make_result, step_result

from sentinel.cluster.agent_role import AgentRole
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.store import database

DETECTORS = {"kl_blowup": Severity.CRITICAL, "node_lost": Severity.CRITICAL}
CLUSTER_PREFIXES = (
    "sentinel_node",
    "sentinel_head_connection_up",
    "sentinel_head_connection_spooled",
    "sentinel_cluster",
)

HEAD = {
    "role": "head",
    "port": 14007,
    "head": "gpu-a:14007",
    "error": "",
    "nodes": [
        {"host": "gpu-a", "ranks": [0, 1], "state": "up"},
        {"host": "gpu-b", "ranks": [2, 3], "state": "lost"},
        {"host": "gpu-c", "ranks": [4, 5], "state": "up"},
        {"host": "gpu-d", "ranks": [6, 7], "state": "ended"},
    ],
}
FOLLOWER = {"role": "follower", "head": "gpu-a:14007", "connected": True, "spooled_bytes": 2048}
MULTI_NODE = {"world_size": 8.0, "local_world_size": 2.0}


def make_exposition(cluster, *results, settings=MULTI_NODE, counters=None):
    exposition = Exposition(
        counters or Counters(), DETECTORS, run=RUN, cluster_status=lambda: cluster
    )
    for result in (make_result(Event.START, rank=0, values=settings), *results):
        exposition.update(result)
    return exposition


def series(cluster, *results, settings=MULTI_NODE):
    return samples(make_exposition(cluster, *results, settings=settings))


def cluster_series(found):
    return {name: value for name, value in found.items() if name[0].startswith(CLUSTER_PREFIXES)}


def test_the_head_exports_the_numbers_of_up_and_lost_nodes():
    assert cluster_series(series(HEAD)) == {
        ("sentinel_cluster_role_info", "gpu-a:14007", "head"): 1.0,
        ("sentinel_nodes", "up"): 2.0,
        ("sentinel_nodes", "lost"): 1.0,
    }


def test_a_head_without_a_port_has_an_empty_address():
    shown = series(HEAD | {"port": 0, "head": "gpu-a:0"})

    assert shown["sentinel_cluster_role_info", "", "head"] == 1.0


@pytest.mark.parametrize("connected", [True, False])
def test_a_follower_exports_its_connection_and_spool(connected):
    assert cluster_series(series(FOLLOWER | {"connected": connected})) == {
        ("sentinel_cluster_role_info", "gpu-a:14007", "follower"): 1.0,
        ("sentinel_head_connection_up",): float(connected),
        ("sentinel_head_connection_spooled_bytes",): 2048.0,
        ("sentinel_node_active",): 1.0,
    }


@pytest.mark.parametrize("cluster", [{}, {"role": ""}, {"role": "single"}])
def test_a_run_on_one_node_has_no_cluster_series(cluster):
    single_node = {"world_size": 8.0, "local_world_size": 8.0}
    shown = series(cluster, settings=single_node)

    assert cluster_series(shown) == {}
    assert ("sentinel_alert_firing", "kl_blowup", "critical") in shown
    assert ("sentinel_steps_total",) in shown


def test_a_run_without_settings_has_no_cluster_series():
    assert cluster_series(series({"role": "single"}, settings={})) == {}


def test_an_isolated_node_exports_that_the_head_is_not_connected():
    assert cluster_series(series({"role": "single"})) == {
        ("sentinel_cluster_role_info", "", "single"): 1.0,
        ("sentinel_head_connection_up",): 0.0,
    }


def test_a_follower_does_not_export_run_level_metrics():
    step = step_result(rank=2, loss=1.0)
    heartbeat = make_result(
        Event.HEARTBEAT, values={"ranks_running": 2.0}, attributes={"state": "running"}
    )
    results = make_result(Event.START, rank=2), step, heartbeat
    head, follower = series(HEAD, *results), series(FOLLOWER, *results)
    missing = {name for name, *_ in head.keys() - follower.keys()}

    assert missing == {
        "sentinel_attempt_start_timestamp_seconds",
        "sentinel_run_active",
        "sentinel_run_info",
        "sentinel_run_setting",
        "sentinel_run_state",
        "sentinel_steps_total",
        "sentinel_checkpoints_total",
        "sentinel_logged_values_hidden_total",
        "sentinel_nodes",
        "sentinel_cluster_role_info",
        "sentinel_alert_firing",
        "sentinel_alerts_total",
        "sentinel_alert_silenced",
        "sentinel_alert_acknowledged",
    }
    assert follower["sentinel_rank_up", "2"] == 1.0


def test_a_follower_whose_ranks_ended_is_not_active():
    end = make_result(Event.HEARTBEAT, attributes={"state": "finished"})

    assert series(FOLLOWER, end)["sentinel_node_active",] == 0.0


def test_a_follower_exports_only_the_alert_that_it_can_raise():
    alerts = {name[1] for name in series(FOLLOWER) if name[0] == "sentinel_alert_firing"}

    assert alerts == {"node_lost"}


def test_rejected_messages_are_counted_by_reason():
    counters = Counters()
    counters.add("sentinel_head_connection_rejected_total", "token", 3)
    counters.add("sentinel_dropped_records_total", "late")

    assert make_exposition(HEAD, counters=counters).state()["refused"] == {"token": 3.0}


def test_a_malformed_head_address_does_not_break_the_exposition():
    shown = cluster_series(series(FOLLOWER | {"head": "a\nb\ud800:1"}))

    assert ("sentinel_cluster_role_info", "ab:1", "follower") in shown


def test_an_undecided_role_has_no_cluster_series(tmp_path):
    """The status comes from a real `AgentRole` before its first rank."""
    connection = database.connect(tmp_path / "sentinel.db")
    try:
        status = AgentRole(RUN, connection, Counters(), lambda: None).status()
    finally:
        connection.close()

    assert status["role"] == ""
    assert cluster_series(series(status)) == {}


def test_rejected_messages_have_a_counter_family():
    assert "sentinel_head_connection_rejected_total" in {count.family for count in COUNTER_FAMILIES}
