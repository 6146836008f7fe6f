"""Which of several ends is the cause, whatever the order in which they are seen."""

from __future__ import annotations

import pytest

from sentinel.model.rank_end import EndKind, RankEnd, first_failure, is_connection_error

LOST = {"outcome": "exception", "exception": "RuntimeError", "message": "Connection closed by peer"}
OWN = {"outcome": "exception", "exception": "ValueError", "message": "bad sample"}
KILLED = {"outcome": "died", "signal": "SIGKILL"}
UNKNOWN = {"outcome": "died"}
ASKED = {"outcome": "died", "signal": "SIGTERM"}
ABORTED = {"outcome": "died", "signal": "SIGABRT"}


def ends(*described):
    """Ends of ranks 0, 1, …, each described by its attributes and its time."""
    return [RankEnd((rank,), at, attributes) for rank, (attributes, at) in enumerate(described)]


def culprits(*described, clock_error=0.0):
    causes, followers = first_failure(ends(*described), clock_error)
    named = [rank for each in causes for rank in each.ranks]
    following = [rank for each in followers for rank in each.ranks]
    assert sorted(named + following) == [*range(len(described))]
    return named


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([(LOST, 0.0), (KILLED, 0.05)], [1]),
        ([(KILLED, 0.0), (LOST, 0.05)], [0]),
        ([(LOST, 0.0), (KILLED, 4.0)], [1]),
        ([(LOST, 0.0), (KILLED, 30.0)], [0]),
        ([(LOST, 0.0), (UNKNOWN, 0.05)], [1]),
        ([(LOST, 0.0), (UNKNOWN, 0.5)], [0]),
        ([(KILLED, 0.0), (LOST, 0.1), (ASKED, 0.2)], [0]),
        ([(ASKED, 0.0), (KILLED, 0.1)], [1]),
        ([(ASKED, 0.0), (ASKED, 0.0), (KILLED, 30.0)], [0, 1]),
        ([(ASKED, 0.0), (UNKNOWN, 0.1), (LOST, 0.1)], [0, 1]),
        ([(OWN, 0.0), (LOST, 0.0), (ASKED, 0.2)], [0]),
        ([(LOST, 0.0), (OWN, 0.1)], [1]),
        ([(OWN, 0.0), (KILLED, 0.1)], [1]),
        ([(OWN, 0.0), (KILLED, 1.0)], [0]),
        ([(OWN, 0.0), (OWN, 0.1)], [0, 1]),
        ([(KILLED, 0.0), (KILLED, 0.2), (UNKNOWN, 0.2)], [0, 1]),
        ([(KILLED, 0.0), (ABORTED, 0.0)], [0]),
        ([(LOST, 0.0), (LOST, 0.1)], [0, 1]),
    ],
)
def test_the_first_end_by_itself_is_the_cause(described, expected):
    assert culprits(*described) == expected


def test_across_nodes_the_order_may_be_wrong_by_a_second():
    assert culprits((ASKED, 0.0), (KILLED, 1.0)) == [0]
    assert culprits((ASKED, 0.0), (KILLED, 1.0), clock_error=1.0) == [1]


def test_ranks_that_finished_neither_caused_nor_followed():
    causes, followers = first_failure(ends(({"outcome": "finished"}, 0.0), (KILLED, 9.0)))

    assert [each.ranks for each in causes] == [(1,)]
    assert followers == []
    assert first_failure(ends(({"outcome": "unknown"}, 0.0))) == ([], [])


@pytest.mark.parametrize(
    ("attributes", "kind", "outcome"),
    [
        (KILLED, EndKind.OWN, "died"),
        (ASKED, EndKind.STOPPED, "stopped"),
        (KILLED | {"stop_signal": "SIGTERM"}, EndKind.STOPPED, "stopped"),
        (KILLED | {"stop_signal": "SIGINT"}, EndKind.OWN, "interrupted"),
        ({"outcome": "exit", "code": "143"}, EndKind.STOPPED, "stopped"),
        ({"outcome": "exit", "code": "3"}, EndKind.OWN, "exit"),
        ({"outcome": "died", "signal": "SIGINT"}, EndKind.OWN, "interrupted"),
        (ABORTED, EndKind.ABORTED, "died"),
        ({"outcome": "exception", "exception": "SIGTERMException"}, EndKind.STOPPED, "stopped"),
        (
            {"outcome": "exception", "exception": "X", "connection_error": "yes"},
            EndKind.CONSEQUENCE,
            "exception",
        ),
    ],
)
def test_the_kind_of_an_end(attributes, kind, outcome):
    end = RankEnd((0,), 0.0, attributes)

    assert (end.kind, end.outcome) == (kind, outcome)


@pytest.mark.parametrize(
    "attributes",
    [
        {"exception": "DistBackendError", "message": "anything"},
        {"exception": "RuntimeError", "message": "[pair.cc:534] Connection closed by peer [::1]"},
        {"exception": "RuntimeError", "message": "Connection reset by peer"},
        {"exception": "RuntimeError", "message": "NCCL communicator was aborted on rank 2."},
        {"exception": "RuntimeError", "message": "[../gloo/transport/tcp/pair.cc] timed out"},
        {"exception": "StepError", "caused_by": "DistBackendError: NCCL error"},
        {"exception": "ConnectionResetError", "message": "[Errno 104]"},
    ],
)
def test_errors_of_connections_are_recognized(attributes):
    assert is_connection_error(attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"exception": "RuntimeError", "message": "CUDA error: an illegal memory access"},
        {"exception": "OutOfMemoryError", "message": "CUDA out of memory"},
        {"exception": "ValueError", "message": "globally wrong"},
        {"exception": "RuntimeError"},
    ],
)
def test_other_errors_are_not_taken_for_one(attributes):
    assert not is_connection_error(attributes)
