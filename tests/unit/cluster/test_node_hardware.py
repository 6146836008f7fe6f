"""Measurements of several machines are combined, at the interval of the nodes."""

from __future__ import annotations

import pytest

from sentinel.cluster.node_hardware import NodeHardware, combine_hosts, hardware_values
from sentinel.signals.hardware import Gpu, NodeMeasurements

MEASUREMENTS = NodeMeasurements(
    {"host_cpu": 0.5, "host_memory_used": 3.0, "host_memory_total": 8.0},
    {"state": 50.0, "output": 7.0},
    [
        Gpu(0, values={"gpu_utilisation": 0.2, "gpu_ecc_errors": 1.0}),
        Gpu(1, values={"gpu_utilisation": 0.6, "gpu_ecc_errors": 2.0}),
    ],
    {0: [0], 1: [1]},
)


def test_all_measurements_of_a_heartbeat_are_recognized():
    values = MEASUREMENTS.heartbeat_values()

    assert hardware_values({**values, "idle_seconds": 1.0, "ranks_gone": 0.0}) == values


def test_two_equal_machines_combine_like_one_with_the_gpus_of_both():
    values, worst_hosts = combine_hosts(
        [("a", MEASUREMENTS.heartbeat_values()), ("b", MEASUREMENTS.heartbeat_values())]
    )
    both = NodeMeasurements(
        MEASUREMENTS.host_values,
        MEASUREMENTS.free_bytes,
        [*MEASUREMENTS.gpus] * 2,
        {0: [0, 2], 1: [1, 3]},
    )

    assert values == pytest.approx(both.heartbeat_values())
    assert worst_hosts == {}


def test_the_host_with_the_worst_value_is_named():
    low = {"disk_free": 1.0, "gpu_utilisation": 0.1, "gpu_utilisation_min": 0.0, "gpu_xid": 0.0}
    high = {"disk_free": 9.0, "gpu_utilisation": 0.9, "gpu_utilisation_min": 0.8, "gpu_xid": 79.0}
    _, worst_hosts = combine_hosts([("a", low), ("b", high)])

    assert worst_hosts == {
        "disk_free_host": "a",
        "gpu_utilisation_min_host": "a",
        "gpu_xid_host": "b",
    }


def test_a_value_that_only_some_machines_have_is_combined_over_those():
    measured = {"host_cpu": 0.2, "disk_free_output": 70.0}, {"host_cpu": 0.4}, {}
    values, worst_hosts = combine_hosts([*zip("abc", measured, strict=True)])

    assert values == {"host_cpu": pytest.approx(0.3), "disk_free_output": 70.0}
    assert worst_hosts == {}


def test_measurements_of_a_single_machine_are_due_at_once():
    hardware = NodeHardware()
    for used in (1.0, 2.0):
        hardware.update("a", "a", {"host_memory_used": used, "idle_seconds": 0.0})
        assert hardware.pop_combined() == ({"host_memory_used": used}, {})
        assert hardware.pop_combined() == ({}, {})


def test_measurements_of_several_machines_are_combined():
    """Otherwise a full disk and an empty one would look like one that fills and empties."""
    hardware, combined = NodeHardware(expected_nodes=2), []
    for increment in range(4):
        for node, free in (("a", 100.0), ("b", 10.0)):
            hardware.update(node, node, {"disk_free": free + increment})
            combined.append(hardware.pop_combined()[0])

    assert [each["disk_free"] for each in combined if each] == [10.0, 11.0, 12.0, 13.0]


def test_a_silent_machine_does_not_block_and_a_lost_one_is_dropped():
    hardware = NodeHardware()
    hardware.update("a", "a", {"disk_free": 100.0})
    hardware.pop_combined()
    hardware.update("b", "b", {"disk_free": 10.0})
    assert hardware.pop_combined() == ({}, {})
    hardware.update("b", "b", {"disk_free": 9.0})
    assert hardware.pop_combined()[0] == {"disk_free": 9.0}
    hardware.forget("b")
    hardware.update("a", "a", {"disk_free": 99.0})
    assert hardware.pop_combined()[0] == {"disk_free": 99.0}


def test_old_errors_of_a_node_that_joins_are_not_counted():
    hardware = NodeHardware(expected_nodes=2)

    def combined_errors(**errors):
        for node, count in errors.items():
            hardware.update(node, node, {"gpu_ecc_errors": count})
        return hardware.pop_combined()[0].get("gpu_ecc_errors")

    assert combined_errors(a=3.0, b=100.0) == 0.0
    assert combined_errors(a=3.0, b=102.0) == 2.0
    hardware.forget("b")
    assert combined_errors(a=4.0) is None
    assert combined_errors(a=4.0) == 1.0
    assert combined_errors(a=4.0, b=102.0) == 3.0
    assert combined_errors(a=4.0, b=1.0) == 1.0
