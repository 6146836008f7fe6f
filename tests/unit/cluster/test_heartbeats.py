"""Roll: what the nodes say of their ranks, brought together, is what one node of all would say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.cluster.heartbeats import NodeHeartbeat, head_watch_heartbeat, merge_heartbeats
from sentinel.live.liveness import LiveRank, build_heartbeat
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_layout import RingHeader

NOW = 1000.0
MERGED_ONLY = {"nodes", "nodes_lost", "lost_seconds", "lost_ranks", "lost_nodes"}


class Alive(Process):
    """A process that nothing stops."""

    def is_stopped(self):
        return False


class Still(Process):
    """A process that a signal stops."""

    def is_stopped(self):
        return True


def rank(number, beat=10, *, begun=0, moved=NOW, outcome="", ended=0.0, held=False, **stop):
    header = RingHeader(
        process=(Still if held else Alive)(1000 + number, 1),
        identity=Identity("one", rank=number),
        capacity=4096,
        created_at=0.0,
        position=0,
        sequence=0,
        last_step=100 * beat,
        last_step_index=beat,
        last_time=0.0,
        outcome=outcome or "running",
        backward_step_index=begun,
        overhead_ns=0,
        errors=0,
        drop_counts=(),
    )
    return LiveRank(None, None, RingCursor(0, 0), header, moved, outcome, ended, stop)


def told(*ranks, host="", age=0.0, lost=False, attempt=0):
    tick = build_heartbeat(host or "one", [*ranks], NOW - age)
    numbers = tuple(each.read_header.identity.rank for each in ranks)
    host = host or f"host{numbers[0] // 2}"
    return NodeHeartbeat(replace(tick, attempt=attempt), host, numbers, age, lost)


def of(*nodes):
    return merge_heartbeats("run", nodes, NOW)


def sorted_ranks(facts):
    return {
        name: sorted(fact.split(",")) if name in ("died_ranks", "failed_ranks") else fact
        for name, fact in facts.items()
    }


def test_one_node_alone_says_what_it_always_said():
    one = told(rank(0, 9), rank(1, outcome="exception", ended=990.0, exception="ValueError"))
    tick = of(one)

    assert {n: v for n, v in tick.values.items() if n not in MERGED_ONLY} == dict(
        one.heartbeat.values
    )
    assert {n: f for n, f in tick.attributes.items() if n not in MERGED_ONLY} == dict(
        one.heartbeat.attributes
    )
    assert (tick.run, tick.rank, tick.event) == ("run", WHOLE_RUN, Event.HEARTBEAT)
    assert (tick.step, tick.step_index, tick.time) == (1000, 10, NOW)
    assert (tick.values["nodes"], tick.values["nodes_lost"], tick.attributes["lost_ranks"]) == (
        1.0,
        0.0,
        "",
    )


@st.composite
def some_ranks(draw):
    """Up to three nodes of two ranks each, whatever became of them; no two fell nearly together."""
    fallen = draw(st.permutations(range(900, 960, 10)))
    ranks = []
    for number in range(2 * draw(st.integers(1, 3))):
        outcome = draw(st.sampled_from(["", "", "finished", "died", "exception", "exit"]))
        beat = draw(st.integers(0, 3))
        ranks.append(
            rank(
                number,
                beat,
                begun=beat + draw(st.integers(0, 1)),
                moved=NOW - draw(st.integers(0, 30)),
                outcome=outcome,
                ended=float(fallen[number]) if outcome else 0.0,
                held=draw(st.integers(0, 5)) == 0,
                **({"exception": f"Error{number}"} if outcome == "exception" else {}),
            )
        )
    return ranks


@settings(max_examples=3 * settings.default.max_examples)
@given(some_ranks())
def test_nodes_together_say_what_one_node_with_all_ranks_would(ranks):
    whole = build_heartbeat("run", ranks, NOW)
    tick = of(*(told(*ranks[i : i + 2]) for i in range(0, len(ranks), 2)))

    assert {n: v for n, v in tick.values.items() if n not in MERGED_ONLY} == dict(whole.values)
    facts = {n: f for n, f in tick.attributes.items() if n not in MERGED_ONLY}
    assert sorted_ranks(facts) == sorted_ranks(whole.attributes)
    assert (tick.step_index, tick.attempt) == (whole.step_index, whole.attempt)


def test_the_first_to_fall_is_named_first_whichever_node_it_is_on():
    one = told(rank(0, outcome="exception", ended=995.0, exception="ConnectionError"), rank(1))
    two = told(rank(2), rank(3, outcome="exit", ended=980.0, code="7"))
    tick = of(one, two)

    assert tick.attributes["failed_ranks"] == "3,0"
    assert (tick.attributes["cause"], tick.attributes["code"]) == ("exit", "7")
    assert "exception" not in tick.attributes
    assert tick.attributes["failed_seconds_ago"] == "20.000"


def test_a_death_comes_before_the_errors_that_it_causes_on_other_nodes():
    one = told(rank(0, outcome="exception", ended=994.6, exception="ConnectionError"))
    two = told(rank(2, outcome="died", ended=995.0))
    much_later = told(rank(2, outcome="died", ended=999.0))

    assert of(one, two).attributes["cause"] == "died"
    assert of(one, much_later).attributes["cause"] == "exception"


def test_what_a_node_said_a_while_ago_has_aged():
    tick = of(
        told(rank(0, moved=NOW - 9.0)),
        told(rank(2, moved=NOW - 8.0, outcome="died", ended=NOW - 6), age=4.0),
    )

    assert tick.values["idle_seconds"] == 8.0
    assert float(tick.attributes["failed_seconds_ago"]) == pytest.approx(6.0)


def test_the_ranks_behind_are_those_that_got_least_far_of_all():
    ahead, behind = told(rank(0, 10), rank(1, 10)), told(rank(2, 9), rank(3, 10))

    assert of(ahead, behind).attributes["straggler_ranks"] == "2"
    assert of(ahead, behind).attributes["straggler_step"] == "900"
    assert "all_behind" not in of(ahead, behind).attributes
    assert of(ahead, told(rank(2, 10))).attributes["all_behind"] == "yes"
    assert of(ahead, told(rank(2, 10))).attributes["straggler_ranks"] == "0,1,2"


def test_a_rank_that_waits_in_its_backward_pass_is_not_the_one_behind():
    waiting, slow = told(rank(0, 10, begun=11)), told(rank(2, 10, begun=10))

    assert of(waiting, slow).attributes["straggler_ranks"] == "2"


def test_a_stopped_rank_holds_all_nodes():
    tick = of(told(rank(0, 8)), told(rank(2, 10, held=True, moved=NOW - 5.0), rank(3, 10)))

    assert (tick.attributes["straggler_ranks"], tick.attributes["blocked_by"]) == ("2", "signal")


def test_a_lost_node_is_named_and_its_ranks_neither_run_nor_are_gone():
    tick = of(
        told(rank(0), rank(1), host="a"),
        told(rank(2), rank(3), host="b", age=12.0, lost=True),
    )

    assert (tick.values["nodes"], tick.values["nodes_lost"]) == (2.0, 1.0)
    assert tick.values["lost_seconds"] == 12.0
    assert (tick.attributes["lost_ranks"], tick.attributes["lost_nodes"]) == ("2,3", "b")
    assert (tick.values["ranks_running"], tick.values["ranks_gone"]) == (2.0, 0.0)
    assert tick.attributes["straggler_ranks"] == "0,1"
    assert "blocked_by" not in tick.attributes
    assert tick.values["idle_seconds"] == 0.0


def test_ranks_that_stand_since_a_node_was_lost_wait_for_it():
    lost = told(rank(2, 9), rank(3, 9), host="b", age=12.0, lost=True)

    for idle, held in ((8.0, "node_lost"), (6.0, None)):
        standing = told(*(rank(each, 10, moved=NOW - idle) for each in (0, 1)), host="a")
        tick = of(standing, lost)
        assert tick.attributes.get("blocked_by") == held
        assert tick.attributes["straggler_ranks"] == ("2,3" if held else "0,1")
        assert ("all_behind" in tick.attributes) == (held is None)

    ended = told(rank(0, outcome="exception", ended=990.0), host="a")
    assert "blocked_by" not in of(ended, lost).attributes


def test_a_node_that_hears_nothing_of_the_head_says_so_itself():
    own = told(rank(2, moved=NOW - 30.0)).heartbeat
    tick = head_watch_heartbeat(own, "node0", 20.0)

    assert tick.attributes == {"head_lost": "node0", "blocked_by": "node_lost"}
    assert tick.values == {"nodes_lost": 1.0, "lost_seconds": 20.0}
    assert head_watch_heartbeat(told(rank(2)).heartbeat, "node0", 20.0).attributes == {
        "head_lost": "node0"
    }
    assert head_watch_heartbeat(own, "", 0.0).values["nodes_lost"] == 0.0


def test_what_was_known_of_a_node_before_it_was_lost_stays_known():
    alive = told(rank(0), host="a")
    lost = told(rank(2), rank(3, outcome="died", ended=900.0), host="b", age=20.0, lost=True)
    tick = of(alive, lost)

    assert (tick.attributes["lost_ranks"], tick.attributes["died_ranks"]) == ("2", "3")
    assert (tick.attributes["cause"], tick.values["ranks_gone"]) == ("died", 1.0)


def test_a_run_of_which_every_node_is_lost_is_still_told_of():
    tick = of(told(rank(0), age=30.0, lost=True))

    assert (tick.values["ranks_running"], tick.values["idle_seconds"]) == (0.0, 30.0)
    assert tick.attributes["state"] == "running"


def test_a_new_attempt_does_not_know_the_nodes_of_the_last():
    tick = of(told(rank(0), attempt=1), told(rank(2), age=60.0, lost=True))

    assert (tick.attempt, tick.values["nodes"], tick.values["nodes_lost"]) == (1, 1.0, 0.0)


def test_a_run_is_over_when_all_of_its_nodes_are():
    done, died = rank(0, outcome="finished", ended=900.0), rank(2, outcome="died", ended=910.0)

    assert of(told(done), told(rank(2))).attributes["state"] == "running"
    assert of(told(done), told(died)).attributes["state"] == "died"
    assert of(told(done), told(rank(2, 0))).attributes["state"] == "running"
    assert of(told(rank(0, 0)), told(rank(2, 0))).attributes["state"] == "starting"


def test_the_signal_that_ended_a_command_is_that_of_the_first_to_fall():
    def launched(each, **facts):
        return replace(
            each, tick=replace(each.heartbeat, facts={**each.heartbeat.attributes, **facts})
        )

    error = launched(
        told(rank(0, outcome="exception", ended=995.0)), signal="SIGTERM", exit_code="143"
    )
    killed = launched(told(rank(2, outcome="died", ended=990.0)), signal="SIGKILL", exit_code="137")

    assert of(error, killed).attributes["signal"] == "SIGKILL"
    assert of(error, told(rank(2, outcome="died", ended=990.0))).attributes.get("signal") is None
    waiting = launched(told(rank(2, outcome="died", ended=990.0)), launcher="running")
    assert of(error, waiting).attributes["launcher"] == "running"


def test_without_a_tick_there_is_nothing_to_say():
    with pytest.raises(ValueError, match="empty"):
        merge_heartbeats("run", [], NOW)


def test_a_tick_of_a_command_that_never_began_is_told_as_it_is():
    facts = {
        "died_ranks": "", "failed_ranks": "", "state": "failed", "cause": "exit",
        "failed_before": "any rank",
    }  # fmt: skip
    tick = Record("one", WHOLE_RUN, 0, NOW, Event.HEARTBEAT, {"ranks_running": 0.0}, facts)

    assert of(NodeHeartbeat(tick, "a", (), 0.0, False)).attributes["failed_before"] == "any rank"
