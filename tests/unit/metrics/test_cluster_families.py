"""Cluster families: a head shows its nodes, a post its link, and a run is there but once."""

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
NEW = (
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
POST = {"role": "follower", "head": "gpu-a:14007", "connected": True, "spooled_bytes": 2048}
SEVERAL = {"world_size": 8.0, "local_world_size": 2.0}


def exposition(cluster, *verdicts, settings=SEVERAL, tally=None):
    shown = Exposition(tally or Counters(), DETECTORS, run=RUN, cluster_status=lambda: cluster)
    for verdict in (make_result(Event.START, rank=0, values=settings), *verdicts):
        shown.update(verdict)
    return shown


def series(cluster, *verdicts, settings=SEVERAL):
    return samples(exposition(cluster, *verdicts, settings=settings))


def new(shown):
    return {name: value for name, value in shown.items() if name[0].startswith(NEW)}


def test_a_head_shows_how_many_nodes_are_up_and_how_many_are_lost():
    assert new(series(HEAD)) == {
        ("sentinel_cluster_role_info", "gpu-a:14007", "head"): 1.0,
        ("sentinel_nodes", "up"): 2.0,
        ("sentinel_nodes", "lost"): 1.0,
    }


def test_a_head_that_cannot_listen_is_told_without_an_address():
    shown = series(HEAD | {"port": 0, "head": "gpu-a:0"})

    assert shown["sentinel_cluster_role_info", "", "head"] == 1.0


@pytest.mark.parametrize("connected", [True, False])
def test_a_post_shows_its_link_and_what_waits(linked):
    assert new(series(POST | {"connected": linked})) == {
        ("sentinel_cluster_role_info", "gpu-a:14007", "follower"): 1.0,
        ("sentinel_head_connection_up",): float(linked),
        ("sentinel_head_connection_spooled_bytes",): 2048.0,
        ("sentinel_node_active",): 1.0,
    }


@pytest.mark.parametrize("cluster", [{}, {"role": ""}, {"role": "single"}])
def test_a_run_on_one_node_has_no_series_of_nodes(cluster):
    one = {"world_size": 8.0, "local_world_size": 8.0}
    shown = series(cluster, settings=one)

    assert new(shown) == {}
    assert ("sentinel_alert_firing", "kl_blowup", "critical") in shown
    assert ("sentinel_steps_total",) in shown


def test_a_run_whose_settings_nobody_told_has_no_series_of_nodes():
    assert new(series({"role": "single"}, settings={})) == {}


def test_a_node_that_reached_no_head_shows_that_its_link_is_down():
    assert new(series({"role": "single"})) == {
        ("sentinel_cluster_role_info", "", "single"): 1.0,
        ("sentinel_head_connection_up",): 0.0,
    }


def test_a_post_leaves_what_is_said_of_the_run_to_its_head():
    step = step_result(rank=2, loss=1.0)
    tick = make_result(
        Event.HEARTBEAT, values={"ranks_running": 2.0}, attributes={"state": "running"}
    )
    head, post = series(HEAD, step, tick), series(POST, step, tick)
    missing = {name for name, *_ in head.keys() - post.keys()}

    assert missing == {
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
    assert post["sentinel_rank_up", "2"] == 1.0


def test_a_post_whose_ranks_have_ended_says_so():
    end = make_result(Event.HEARTBEAT, attributes={"state": "finished"})

    assert series(POST, end)["sentinel_node_active",] == 0.0


def test_a_post_vouches_for_the_one_alert_that_it_may_raise():
    alerts = {name[1] for name in series(POST) if name[0] == "sentinel_alert_firing"}

    assert alerts == {"node_lost"}


def test_refused_messages_are_told_by_reason():
    tally = Counters()
    tally.add("sentinel_head_connection_rejected_total", "token", 3)
    tally.add("sentinel_dropped_records_total", "late")

    assert exposition(HEAD, tally=tally).state()["refused"] == {"token": 3.0}


def test_names_from_elsewhere_cannot_break_the_page():
    shown = new(series(POST | {"head": "a\nb\ud800:1"}))

    assert ("sentinel_cluster_role_info", "ab:1", "follower") in shown


def test_what_nodes_say_of_themselves_is_understood(tmp_path):
    """The part of an agent of which nothing is known yet, as it really tells it."""
    connection = database.connect(tmp_path / "sentinel.db")
    try:
        told = AgentRole(RUN, connection, Counters(), lambda: None).status()
    finally:
        connection.close()

    assert told["role"] == ""
    assert new(series(told)) == {}


def test_what_is_refused_has_a_family():
    assert "sentinel_head_connection_rejected_total" in {count.family for count in COUNTER_FAMILIES}
