"""Machine: what the agent measures of its node, and what of it is told of the run."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

import pytest
from support.fake_nvml import Card, FakeNvml, NVMLError
from support.rank_processes import until

from sentinel.live.node.node_metrics import NodeMetrics, output_dir
from sentinel.live.node.nvml import NvmlReader
from sentinel.model.counters import Counters
from sentinel.signals.hardware import Gpu, NodeMeasurements, select_run_gpus

GIB = 2.0**30


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def watched(tmp_path, clock, library=None, **more):
    nvml = NvmlReader(library or FakeNvml())
    return NodeMetrics(5.0, Counters(), tmp_path, clock=clock, nvml=nvml, **more)


def look(machine, *parts):
    for part in parts or machine.pollers:
        machine.pollers[part].poll_once()


def gpu(index=0, pids=(), uuid="", **values):
    return Gpu(index, uuid, values=values, pids=frozenset(pids))


def test_gpus_are_gathered_as_the_catalogue_says_with_their_extremes():
    told = NodeMeasurements(
        gpus=[
            gpu(0, gpu_utilisation=0.25, gpu_memory_used=3.0, gpu_xid=0.0, gpu_power=300.0),
            gpu(1, gpu_utilisation=0.75, gpu_memory_used=5.0, gpu_xid=79.0, gpu_power=400.0),
        ]
    ).heartbeat_values()

    assert (told["gpu_utilisation"], told["gpu_utilisation_min"]) == (0.5, 0.25)
    assert (told["gpu_memory_used_min"], told["gpu_memory_used_max"]) == (3.0, 5.0)
    assert (told["gpu_xid"], told["gpu_ranks"]) == (79.0, 0.0)
    assert "gpu_temperature" not in told


def test_the_fullest_disk_speaks_for_the_run():
    told = NodeMeasurements(free_bytes={"state": 50.0, "output": 7.0}).heartbeat_values()

    assert told == {"disk_free": 7.0, "disk_free_state": 50.0, "disk_free_output": 7.0}


def test_the_gpus_of_the_run_are_those_its_ranks_compute_on():
    mine, other = gpu(0, pids=[7, 8]), gpu(1, pids=[99])

    assert select_run_gpus([mine, other], None, {7}) == [mine]


def test_where_the_driver_names_no_rank_the_run_has_the_gpus_it_was_given():
    zero, one = gpu(0, uuid="GPU-aa11"), gpu(1, uuid="GPU-bb22")

    assert select_run_gpus([zero, one], {"1"}, {7}) == [one]
    assert select_run_gpus([zero, one], {"GPU-aa"}, {7}) == [zero]
    assert select_run_gpus([zero, one], {""}, {7}) == []
    assert select_run_gpus([zero, one], None, {7}) == [zero, one]


def test_everything_is_measured_and_told_at_once(tmp_path, clock):
    machine = watched(tmp_path, clock, find_output_dir=lambda: tmp_path / "not" / "yet")
    look(machine)
    look(machine, "host")
    told = machine.new_values()

    assert told["gpu_memory_total"] == 80 * GIB
    assert 0.0 <= told["host_cpu"] <= 1.0
    assert 0.0 < told["host_memory_used"] < told["host_memory_total"]
    assert told["disk_free_output"] > 0.0
    assert told["disk_free_state"] > 0.0


def test_news_is_told_once_and_not_again_before_it_is_due(tmp_path, clock):
    machine = watched(tmp_path, clock)
    assert machine.new_values() == {}
    look(machine)
    assert machine.new_values() != {}
    assert machine.new_values() == {}

    clock.now += 4.0
    look(machine)
    assert machine.new_values() == {}
    clock.now += 1.0
    assert machine.new_values() != {}
    clock.now += 60.0
    assert machine.latest().gpus == ()
    assert machine.new_values() == {}


def test_a_clock_that_is_set_back_silences_nothing(tmp_path, clock):
    machine = watched(tmp_path, clock)
    look(machine)
    machine.new_values()
    clock.now -= 3600.0
    look(machine)

    assert machine.new_values() != {}


def test_ranks_are_found_on_their_gpus(tmp_path, clock):
    library = FakeNvml([Card(pids=(11,)), Card(uuid="GPU-b", pids=(12, 13)), Card(uuid="GPU-c")])
    machine = watched(tmp_path, clock, library, rank_pids=lambda: {0: 11, 1: 12})
    look(machine, "gpu")

    assert machine.latest().ranks_by_gpu == {0: [0], 1: [1]}
    assert machine.new_values()["gpu_ranks"] == 2.0


def test_what_a_rank_was_given_counts_where_the_driver_does_not_know_it(
    tmp_path, clock, monkeypatch
):
    given = {21: b"PATH=/bin\0CUDA_VISIBLE_DEVICES=1\0", 22: b"CUDA_VISIBLE_DEVICES=2\0"}
    real = Path.read_bytes
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: given[int(path.parts[2])] if path.name == "environ" else real(path),
    )
    machine = watched(
        tmp_path, clock, FakeNvml([Card() for _ in range(4)]), rank_pids=lambda: {0: 21, 1: 22}
    )
    look(machine, "gpu")
    assert [gpu.index for gpu in machine.latest().gpus] == [1, 2]

    given[22] = b"PATH=/bin\0"
    look(machine, "gpu")
    assert len(machine.latest().gpus) == 4


def test_a_driver_that_hangs_stops_nothing_else(tmp_path, clock):
    """Neither the loop that asks for news, nor the host's own figures."""
    held = Event()
    machine = watched(tmp_path, clock, FakeNvml(held=held))
    machine.start()
    try:
        until(
            lambda: {"host", "state", "output"} <= machine.latest().measured_at.keys(),
            60.0,
            "the rest",
        )
        assert machine.latest().gpus == ()
        assert "host_memory_used" in machine.new_values()
    finally:
        machine.stop()
        held.set()


def test_a_driver_that_fails_is_counted_and_the_rest_is_told(tmp_path, clock):
    machine = watched(tmp_path, clock, FakeNvml(refusal=NVMLError("Driver Not Loaded")))
    look(machine)

    assert machine.counters.values["sentinel_node_read_errors_total", "gpu"] == 1.0
    assert "host_memory_used" in machine.new_values()


def test_never_means_never(tmp_path, clock):
    machine = NodeMetrics(0.0, Counters(), tmp_path, clock=clock, nvml=NvmlReader(FakeNvml()))
    machine.start()

    assert machine.new_values() == {}
    assert not machine.latest().measured_at


@pytest.mark.parametrize(
    ("about", "folder"),
    [
        ({"output_dir": "/data/run"}, Path("/data/run")),
        ({"default_local_dir": "/data/verl"}, Path("/data/verl")),
        ({"output_dir": "relative", "default_root_dir": "/data/pl"}, Path("/data/pl")),
        ({"output_dir": 3.0}, None),
        ({"output_dir": "/nul\0"}, None),
        ({}, None),
    ],
)
def test_the_folder_of_the_checkpoints_is_what_the_run_says(about, folder):
    assert output_dir(about) == folder


def test_a_containers_limit_is_the_memory_there_is(tmp_path):
    from sentinel.live.node.host import HostReader

    files = {
        "memory.max": "1048576\n",
        "memory.current": "524288\n",
        "memory.stat": "anon 1\ninactive_file 14288\nactive_file 10000\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    told = HostReader(tmp_path).read()
    assert (told["host_memory_used"], told["host_memory_total"]) == (500000.0, 1048576.0)


def test_no_limit_is_no_limit(tmp_path):
    from sentinel.live.node.host import HostReader

    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("524288\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")

    told = HostReader(tmp_path).read()
    assert told["host_memory_total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
