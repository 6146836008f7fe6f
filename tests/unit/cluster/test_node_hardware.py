"""Machines of several nodes: told as one, at the pace at which the nodes look."""

from __future__ import annotations

import pytest

from sentinel.cluster.node_hardware import NodeHardware, combine_hosts, hardware_values
from sentinel.signals.hardware import Gpu, NodeMeasurements

MACHINE = NodeMeasurements(
    {"host_cpu": 0.5, "host_memory_used": 3.0, "host_memory_total": 8.0},
    {"state": 50.0, "output": 7.0},
    [
        Gpu(0, values={"gpu_utilisation": 0.2, "gpu_ecc_errors": 1.0}),
        Gpu(1, values={"gpu_utilisation": 0.6, "gpu_ecc_errors": 2.0}),
    ],
    {0: [0], 1: [1]},
)


def test_everything_that_a_machine_tells_is_known_for_what_it_is():
    values = MACHINE.heartbeat_values()

    assert hardware_values({**values, "idle_seconds": 1.0, "ranks_gone": 0.0}) == values


def test_two_machines_alike_are_as_one_of_both_their_gpus():
    values, facts = combine_hosts(
        [("a", MACHINE.heartbeat_values()), ("b", MACHINE.heartbeat_values())]
    )
    both = NodeMeasurements(
        MACHINE.host_values, MACHINE.free_bytes, [*MACHINE.gpus] * 2, {0: [0, 2], 1: [1, 3]}
    )

    assert values == pytest.approx(both.heartbeat_values())
    assert facts == {}


def test_the_host_where_it_is_worst_is_named():
    low = {"disk_free": 1.0, "gpu_utilisation": 0.1, "gpu_utilisation_min": 0.0, "gpu_xid": 0.0}
    high = {"disk_free": 9.0, "gpu_utilisation": 0.9, "gpu_utilisation_min": 0.8, "gpu_xid": 79.0}
    _, facts = combine_hosts([("a", low), ("b", high)])

    assert facts == {
        "disk_free_host": "a",
        "gpu_utilisation_min_host": "a",
        "gpu_xid_host": "b",
    }


def test_what_only_some_machines_tell_is_told_of_those():
    told = {"host_cpu": 0.2, "disk_free_output": 70.0}, {"host_cpu": 0.4}, {}
    values, facts = combine_hosts([*zip("abc", told, strict=True)])

    assert values == {"host_cpu": pytest.approx(0.3), "disk_free_output": 70.0}
    assert facts == {}


def test_a_machine_alone_is_told_as_often_as_it_tells():
    machines = NodeHardware()
    for used in (1.0, 2.0):
        machines.update("a", "a", {"host_memory_used": used, "idle_seconds": 0.0})
        assert machines.pop_combined() == ({"host_memory_used": used}, {})
        assert machines.pop_combined() == ({}, {})


def test_machines_that_tell_in_turns_are_told_of_together():
    """Else a full disk and an empty one would look like one that fills and empties."""
    machines, told = NodeHardware(expected_nodes=2), []
    for look in range(4):
        for node, free in (("a", 100.0), ("b", 10.0)):
            machines.update(node, node, {"disk_free": free + look})
            told.append(machines.pop_combined()[0])

    assert [each["disk_free"] for each in told if each] == [10.0, 11.0, 12.0, 13.0]


def test_one_that_tells_no_more_holds_up_nobody_and_one_that_is_lost_is_forgotten():
    machines = NodeHardware()
    machines.update("a", "a", {"disk_free": 100.0})
    machines.pop_combined()
    machines.update("b", "b", {"disk_free": 10.0})
    assert machines.pop_combined() == ({}, {})
    machines.update("b", "b", {"disk_free": 9.0})
    assert machines.pop_combined()[0] == {"disk_free": 9.0}
    machines.forget("b")
    machines.update("a", "a", {"disk_free": 99.0})
    assert machines.pop_combined()[0] == {"disk_free": 99.0}


def test_a_node_that_joins_or_comes_back_brings_no_old_errors_as_news():
    machines = NodeHardware(expected_nodes=2)

    def told(**errors):
        for node, count in errors.items():
            machines.update(node, node, {"gpu_ecc_errors": count})
        return machines.pop_combined()[0].get("gpu_ecc_errors")

    assert told(a=3.0, b=100.0) == 0.0
    assert told(a=3.0, b=102.0) == 2.0
    machines.forget("b")
    assert told(a=4.0) is None
    assert told(a=4.0) == 1.0
    assert told(a=4.0, b=102.0) == 3.0
    assert told(a=4.0, b=1.0) == 1.0
