"""The merged heartbeat of several nodes equals that of one node with all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.cluster.heartbeats import NodeHeartbeat, head_watch_heartbeat, merge_heartbeats
from sentinel.live.liveness import build_heartbeat
from sentinel.live.rank import LiveRank
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_layout import RingHeader

NOW = 1000.0
MERGED_ONLY = {"nodes", "nodes_lost", "lost_seconds", "lost_ranks", "lost_nodes"}


class RunningProcess(Process):
    """A process that is not suspended."""

    def state(self):
        return "S"


class SuspendedProcess(Process):
    """A process that a signal has suspended."""

    def state(self):
        return "T"


def rank(
    number,
    step_index=10,
    *,
    backward_step_index=0,
    last_progress_at=NOW,
    outcome="",
    ended_at=0.0,
    is_suspended=False,
    **stop_attributes,
):
    header = RingHeader(
        process=(SuspendedProcess if is_suspended else RunningProcess)(1000 + number, 1),
        identity=Identity("one", rank=number),
        capacity=4096,
        created_at=0.0,
        position=0,
        sequence=0,
        last_step=100 * step_index,
        last_step_index=step_index,
        last_time=0.0,
        outcome=outcome or "running",
        backward_step_index=backward_step_index,
        overhead_ns=0,
        errors=0,
        drop_counts=(),
    )
    return LiveRank(
        None, None, RingCursor(0, 0), header, last_progress_at, outcome, ended_at, stop_attributes
    )


def node(*ranks, host="", age_seconds=0.0, is_lost=False, attempt=0):
    heartbeat = build_heartbeat(host or "one", [*ranks], NOW - age_seconds)
    numbers = tuple(each.header.identity.rank for each in ranks)
    host = host or f"host{numbers[0] // 2}"
    return NodeHeartbeat(replace(heartbeat, attempt=attempt), host, numbers, age_seconds, is_lost)


def merge(*nodes):
    return merge_heartbeats("run", nodes, NOW)


def sorted_ranks(attributes):
    return {
        name: sorted(text.split(",")) if name in ("died_ranks", "failed_ranks") else text
        for name, text in attributes.items()
    }


def test_the_heartbeat_of_a_single_node_is_unchanged():
    one = node(rank(0, 9), rank(1, outcome="exception", ended_at=990.0, exception="ValueError"))
    heartbeat = merge(one)

    assert {n: v for n, v in heartbeat.values.items() if n not in MERGED_ONLY} == dict(
        one.heartbeat.values
    )
    assert {n: f for n, f in heartbeat.attributes.items() if n not in MERGED_ONLY} == dict(
        one.heartbeat.attributes
    )
    assert (heartbeat.run, heartbeat.rank, heartbeat.event) == ("run", WHOLE_RUN, Event.HEARTBEAT)
    assert (heartbeat.step, heartbeat.step_index, heartbeat.time) == (1000, 10, NOW)
    assert (
        heartbeat.values["nodes"],
        heartbeat.values["nodes_lost"],
        heartbeat.attributes["lost_ranks"],
    ) == (
        1.0,
        0.0,
        "",
    )


@st.composite
def some_ranks(draw):
    """Up to three nodes of two ranks each, with any outcomes; no failures are simultaneous."""
    failure_times = draw(st.permutations(range(900, 960, 10)))
    ranks = []
    for number in range(2 * draw(st.integers(1, 3))):
        outcome = draw(st.sampled_from(["", "", "finished", "died", "exception", "exit"]))
        step_index = draw(st.integers(0, 3))
        ranks.append(
            rank(
                number,
                step_index,
                backward_step_index=step_index + draw(st.integers(0, 1)),
                last_progress_at=NOW - draw(st.integers(0, 30)),
                outcome=outcome,
                ended_at=float(failure_times[number]) if outcome else 0.0,
                is_stopped=draw(st.integers(0, 5)) == 0,
                **({"exception": f"Error{number}"} if outcome == "exception" else {}),
            )
        )
    return ranks


@settings(max_examples=3 * settings.default.max_examples)
@given(some_ranks())
def test_merged_heartbeats_equal_that_of_one_node_with_all_ranks(ranks):
    whole = build_heartbeat("run", ranks, NOW)
    heartbeat = merge(*(node(*ranks[i : i + 2]) for i in range(0, len(ranks), 2)))

    assert {n: v for n, v in heartbeat.values.items() if n not in MERGED_ONLY} == dict(whole.values)
    attributes = {n: f for n, f in heartbeat.attributes.items() if n not in MERGED_ONLY}
    assert sorted_ranks(attributes) == sorted_ranks(whole.attributes)
    assert (heartbeat.step_index, heartbeat.attempt) == (whole.step_index, whole.attempt)


def test_the_first_failed_rank_is_first_whichever_node_it_is_on():
    one = node(rank(0, outcome="exception", ended_at=995.0, exception="ConnectionError"), rank(1))
    two = node(rank(2), rank(3, outcome="exit", ended_at=980.0, code="7"))
    heartbeat = merge(one, two)

    assert heartbeat.attributes["failed_ranks"] == "3,0"
    assert (heartbeat.attributes["cause"], heartbeat.attributes["code"]) == ("exit", "7")
    assert "exception" not in heartbeat.attributes
    assert heartbeat.attributes["failed_seconds_ago"] == "20.000"


def test_a_death_precedes_the_errors_that_it_causes_on_other_nodes():
    one = node(rank(0, outcome="exception", ended_at=994.6, exception="ConnectionError"))
    two = node(rank(2, outcome="died", ended_at=995.0))
    much_later = node(rank(2, outcome="died", ended_at=999.0))

    assert merge(one, two).attributes["cause"] == "died"
    assert merge(one, much_later).attributes["cause"] == "exception"


def test_the_age_of_a_heartbeat_is_added_to_its_durations():
    heartbeat = merge(
        node(rank(0, last_progress_at=NOW - 9.0)),
        node(
            rank(2, last_progress_at=NOW - 8.0, outcome="died", ended_at=NOW - 6), age_seconds=4.0
        ),
    )

    assert heartbeat.values["idle_seconds"] == 8.0
    assert float(heartbeat.attributes["failed_seconds_ago"]) == pytest.approx(6.0)


def test_stragglers_have_the_least_progress_of_all_nodes():
    ahead, slow = node(rank(0, 10), rank(1, 10)), node(rank(2, 9), rank(3, 10))

    assert merge(ahead, slow).attributes["straggler_ranks"] == "2"
    assert merge(ahead, slow).attributes["straggler_step"] == "900"
    assert "all_behind" not in merge(ahead, slow).attributes
    assert merge(ahead, node(rank(2, 10))).attributes["all_behind"] == "yes"
    assert merge(ahead, node(rank(2, 10))).attributes["straggler_ranks"] == "0,1,2"


def test_a_rank_that_waits_in_its_backward_pass_is_no_straggler():
    waiting, slow = (
        node(rank(0, 10, backward_step_index=11)),
        node(rank(2, 10, backward_step_index=10)),
    )

    assert merge(waiting, slow).attributes["straggler_ranks"] == "2"


def test_a_suspended_rank_blocks_all_nodes():
    heartbeat = merge(
        node(rank(0, 8)),
        node(rank(2, 10, is_suspended=True, last_progress_at=NOW - 5.0), rank(3, 10)),
    )

    known = heartbeat.attributes
    assert (known["straggler_ranks"], known["blocked_by"]) == ("2", "signal")
    assert known["suspended_processes"] == "2:1002:"


def test_ranks_of_a_lost_node_are_neither_running_nor_dead():
    heartbeat = merge(
        node(rank(0), rank(1), host="a"),
        node(rank(2), rank(3), host="b", age_seconds=12.0, is_lost=True),
    )

    assert (heartbeat.values["nodes"], heartbeat.values["nodes_lost"]) == (2.0, 1.0)
    assert heartbeat.values["lost_seconds"] == 12.0
    assert (heartbeat.attributes["lost_ranks"], heartbeat.attributes["lost_nodes"]) == ("2,3", "b")
    assert (heartbeat.values["ranks_running"], heartbeat.values["ranks_gone"]) == (2.0, 0.0)
    assert heartbeat.attributes["straggler_ranks"] == "0,1"
    assert "blocked_by" not in heartbeat.attributes
    assert heartbeat.values["idle_seconds"] == 0.0


def test_ranks_idle_since_a_node_was_lost_are_blocked_by_it():
    lost = node(rank(2, 9), rank(3, 9), host="b", age_seconds=12.0, is_lost=True)

    for idle, blocked_by in ((8.0, "node_lost"), (6.0, None)):
        idle_node = node(
            *(rank(each, 10, last_progress_at=NOW - idle) for each in (0, 1)), host="a"
        )
        heartbeat = merge(idle_node, lost)
        assert heartbeat.attributes.get("blocked_by") == blocked_by
        assert heartbeat.attributes["straggler_ranks"] == ("2,3" if blocked_by else "0,1")
        assert ("all_behind" in heartbeat.attributes) == (blocked_by is None)

    ended = node(rank(0, outcome="exception", ended_at=990.0), host="a")
    assert "blocked_by" not in merge(ended, lost).attributes


def test_a_suspended_rank_is_named_although_a_node_is_lost():
    own = node(rank(0, last_progress_at=NOW - 20.0, is_suspended=True), rank(1))
    lost = node(rank(2), rank(3), age_seconds=20.0, is_lost=True)
    merged = merge_heartbeats("one", [own, lost], NOW)

    assert merged.attributes["blocked_by"] == "signal"
    assert (merged.attributes["straggler_ranks"], merged.values["nodes_lost"]) == ("0", 1.0)


def test_a_head_watch_heartbeat_reports_the_lost_head():
    own = node(rank(2, last_progress_at=NOW - 30.0)).heartbeat
    heartbeat = head_watch_heartbeat(own, "node0", 20.0)

    assert heartbeat.attributes == {"head_lost": "node0", "blocked_by": "node_lost"}
    assert heartbeat.values == {"nodes_lost": 1.0, "lost_seconds": 20.0}
    assert head_watch_heartbeat(node(rank(2)).heartbeat, "node0", 20.0).attributes == {
        "head_lost": "node0"
    }
    assert head_watch_heartbeat(own, "", 0.0).values["nodes_lost"] == 0.0


def test_a_failure_reported_before_a_node_was_lost_is_preserved():
    alive = node(rank(0), host="a")
    lost = node(
        rank(2), rank(3, outcome="died", ended_at=900.0), host="b", age_seconds=20.0, is_lost=True
    )
    heartbeat = merge(alive, lost)

    assert (heartbeat.attributes["lost_ranks"], heartbeat.attributes["died_ranks"]) == ("2", "3")
    assert (heartbeat.attributes["cause"], heartbeat.values["ranks_gone"]) == ("died", 1.0)


def test_a_run_whose_nodes_are_all_lost_has_a_heartbeat():
    heartbeat = merge(node(rank(0), age_seconds=30.0, is_lost=True))

    assert (heartbeat.values["ranks_running"], heartbeat.values["idle_seconds"]) == (0.0, 30.0)
    assert heartbeat.attributes["state"] == "running"


def test_nodes_of_the_previous_attempt_are_ignored():
    heartbeat = merge(node(rank(0), attempt=1), node(rank(2), age_seconds=60.0, is_lost=True))

    assert (heartbeat.attempt, heartbeat.values["nodes"], heartbeat.values["nodes_lost"]) == (
        1,
        1.0,
        0.0,
    )


def test_a_run_has_ended_when_all_nodes_have_ended():
    done, died = (
        rank(0, outcome="finished", ended_at=900.0),
        rank(2, outcome="died", ended_at=910.0),
    )

    assert merge(node(done), node(rank(2))).attributes["state"] == "running"
    assert merge(node(done), node(died)).attributes["state"] == "died"
    assert merge(node(done), node(rank(2, 0))).attributes["state"] == "running"
    assert merge(node(rank(0, 0)), node(rank(2, 0))).attributes["state"] == "starting"


def test_the_signal_is_that_of_the_node_with_the_first_failure():
    def launched(each, **attributes):
        return replace(
            each,
            heartbeat=replace(
                each.heartbeat, attributes={**each.heartbeat.attributes, **attributes}
            ),
        )

    error = launched(
        node(rank(0, outcome="exception", ended_at=995.0)), signal="SIGTERM", exit_code="143"
    )
    killed = launched(
        node(rank(2, outcome="died", ended_at=990.0)), signal="SIGKILL", exit_code="137"
    )

    assert merge(error, killed).attributes["signal"] == "SIGKILL"
    assert (
        merge(error, node(rank(2, outcome="died", ended_at=990.0))).attributes.get("signal") is None
    )
    waiting = launched(node(rank(2, outcome="died", ended_at=990.0)), launcher="running")
    assert merge(error, waiting).attributes["launcher"] == "running"


def test_merging_no_heartbeats_raises():
    with pytest.raises(ValueError, match="empty"):
        merge_heartbeats("run", [], NOW)


def test_the_heartbeat_of_a_command_that_failed_before_any_rank_is_unchanged():
    attributes = {
        "died_ranks": "", "failed_ranks": "", "state": "failed", "cause": "exit",
        "failed_before": "any rank",
    }  # fmt: skip
    heartbeat = Record(
        "one", WHOLE_RUN, 0, NOW, Event.HEARTBEAT, {"ranks_running": 0.0}, attributes
    )

    assert (
        merge(NodeHeartbeat(heartbeat, "a", (), 0.0, False)).attributes["failed_before"]
        == "any rank"
    )
