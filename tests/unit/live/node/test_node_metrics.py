"""Measurements of the node, and the values reported from them."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

import pytest
from support.clocks import FakeClock
from support.fake_nvml import Card, FakeNvml, NVMLError
from support.rank_processes import until

from sentinel.live.node.node_metrics import NodeMetrics, output_dir
from sentinel.live.node.nvml import NvmlReader
from sentinel.model.counters import Counters
from sentinel.signals.hardware import Gpu, NodeMeasurements, select_run_gpus

GIB = 2.0**30


@pytest.fixture
def clock():
    return FakeClock(1000.0)


def node_metrics(tmp_path, clock, library=None, **settings):
    nvml = NvmlReader(library or FakeNvml())
    return NodeMetrics(5.0, Counters(), tmp_path, clock=clock, nvml=nvml, **settings)


def poll(metrics, *parts):
    for part in parts or metrics.pollers:
        metrics.pollers[part].poll_once()


def gpu(index=0, pids=(), uuid="", **values):
    return Gpu(index, uuid, values=values, pids=frozenset(pids))


def test_gpu_values_are_aggregated_with_their_extremes():
    reported = NodeMeasurements(
        gpus=[
            gpu(0, gpu_utilisation=0.25, gpu_memory_used=3.0, gpu_xid=0.0, gpu_power=300.0),
            gpu(1, gpu_utilisation=0.75, gpu_memory_used=5.0, gpu_xid=79.0, gpu_power=400.0),
        ]
    ).heartbeat_values()

    assert (reported["gpu_utilisation"], reported["gpu_utilisation_min"]) == (0.5, 0.25)
    assert (reported["gpu_memory_used_min"], reported["gpu_memory_used_max"]) == (3.0, 5.0)
    assert (reported["gpu_xid"], reported["gpu_ranks"]) == (79.0, 0.0)
    assert "gpu_temperature" not in reported


def test_disk_free_is_that_of_the_fullest_disk():
    reported = NodeMeasurements(free_bytes={"state": 50.0, "output": 7.0}).heartbeat_values()

    assert reported == {"disk_free": 7.0, "disk_free_state": 50.0, "disk_free_output": 7.0}


def test_the_gpus_of_the_run_are_those_its_ranks_use():
    mine, other = gpu(0, pids=[7, 8]), gpu(1, pids=[99])

    assert select_run_gpus([mine, other], None, {7}) == [mine]


def test_without_pids_of_the_driver_the_run_has_its_assigned_gpus():
    zero, one = gpu(0, uuid="GPU-aa11"), gpu(1, uuid="GPU-bb22")

    assert select_run_gpus([zero, one], {"1"}, {7}) == [one]
    assert select_run_gpus([zero, one], {"GPU-aa"}, {7}) == [zero]
    assert select_run_gpus([zero, one], {""}, {7}) == []
    assert select_run_gpus([zero, one], None, {7}) == [zero, one]


def test_all_parts_are_measured_and_reported_together(tmp_path, clock):
    metrics = node_metrics(tmp_path, clock, find_output_dir=lambda: tmp_path / "not" / "yet")
    poll(metrics)
    poll(metrics, "host")
    reported = metrics.new_values()

    assert reported["gpu_memory_total"] == 80 * GIB
    assert 0.0 <= reported["host_cpu"] <= 1.0
    assert 0.0 < reported["host_memory_used"] < reported["host_memory_total"]
    assert reported["disk_free_output"] > 0.0
    assert reported["disk_free_state"] > 0.0


def test_values_are_reported_once_per_interval(tmp_path, clock):
    metrics = node_metrics(tmp_path, clock)
    assert metrics.new_values() == {}
    poll(metrics)
    assert metrics.new_values() != {}
    assert metrics.new_values() == {}

    clock.now += 4.0
    poll(metrics)
    assert metrics.new_values() == {}
    clock.now += 1.0
    assert metrics.new_values() != {}
    clock.now += 60.0
    assert metrics.latest().gpus == ()
    assert metrics.new_values() == {}


def test_a_clock_that_is_set_back_does_not_stop_reports(tmp_path, clock):
    metrics = node_metrics(tmp_path, clock)
    poll(metrics)
    metrics.new_values()
    clock.now -= 3600.0
    poll(metrics)

    assert metrics.new_values() != {}


def test_ranks_are_assigned_to_their_gpus(tmp_path, clock):
    library = FakeNvml([Card(pids=(11,)), Card(uuid="GPU-b", pids=(12, 13)), Card(uuid="GPU-c")])
    metrics = node_metrics(tmp_path, clock, library, rank_pids=lambda: {0: 11, 1: 12})
    poll(metrics, "gpu")

    assert metrics.latest().ranks_by_gpu == {0: [0], 1: [1]}
    assert metrics.new_values()["gpu_ranks"] == 2.0


def test_cuda_visible_devices_is_used_if_the_driver_reports_no_pids(tmp_path, clock, monkeypatch):
    environs = {21: b"PATH=/bin\0CUDA_VISIBLE_DEVICES=1\0", 22: b"CUDA_VISIBLE_DEVICES=2\0"}
    real = Path.read_bytes
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: environs[int(path.parts[2])] if path.name == "environ" else real(path),
    )
    metrics = node_metrics(
        tmp_path, clock, FakeNvml([Card() for _ in range(4)]), rank_pids=lambda: {0: 21, 1: 22}
    )
    poll(metrics, "gpu")
    assert [gpu.index for gpu in metrics.latest().gpus] == [1, 2]

    environs[22] = b"PATH=/bin\0"
    poll(metrics, "gpu")
    assert len(metrics.latest().gpus) == 4


@pytest.mark.fault("A27")
def test_a_hanging_driver_blocks_no_other_part(tmp_path, clock):
    """Neither the agent's loop nor the host values wait for it."""
    blocked = Event()
    metrics = node_metrics(tmp_path, clock, FakeNvml(held=blocked))
    metrics.start()
    try:
        until(
            lambda: {"host", "state", "output"} <= metrics.latest().measured_at.keys(),
            60.0,
            "the rest",
        )
        assert metrics.latest().gpus == ()
        assert "host_memory_used" in metrics.new_values()
    finally:
        metrics.stop()
        blocked.set()


@pytest.mark.fault("A27")
def test_a_failing_driver_is_counted_and_the_other_parts_are_reported(tmp_path, clock):
    metrics = node_metrics(tmp_path, clock, FakeNvml(refusal=NVMLError("Driver Not Loaded")))
    poll(metrics)

    assert metrics.counters.values["sentinel_node_read_errors_total", "gpu"] == 1.0
    assert "host_memory_used" in metrics.new_values()


def test_an_interval_of_zero_disables_measuring(tmp_path, clock):
    metrics = NodeMetrics(0.0, Counters(), tmp_path, clock=clock, nvml=NvmlReader(FakeNvml()))
    metrics.start()

    assert metrics.new_values() == {}
    assert not metrics.latest().measured_at


@pytest.mark.parametrize(
    ("metadata", "folder"),
    [
        ({"output_dir": "/data/run"}, Path("/data/run")),
        ({"default_local_dir": "/data/verl"}, Path("/data/verl")),
        ({"output_dir": "relative", "default_root_dir": "/data/pl"}, Path("/data/pl")),
        ({"output_dir": 3.0}, None),
        ({"output_dir": "/nul\0"}, None),
        ({}, None),
    ],
)
def test_the_checkpoint_directory_comes_from_the_metadata(metadata, folder):
    assert output_dir(metadata) == folder


def test_the_memory_limit_of_a_container_is_the_total(tmp_path):
    from sentinel.live.node.host import HostReader

    files = {
        "memory.max": "1048576\n",
        "memory.current": "524288\n",
        "memory.stat": "anon 1\ninactive_file 14288\nactive_file 10000\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    reported = HostReader(tmp_path).read()
    assert (reported["host_memory_used"], reported["host_memory_total"]) == (500000.0, 1048576.0)


def test_a_container_without_a_limit_has_the_memory_of_the_machine(tmp_path):
    from sentinel.live.node.host import HostReader

    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("524288\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")

    reported = HostReader(tmp_path).read()
    assert reported["host_memory_total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
