"""Metrics of the node's hardware, and of a run's settings and patches."""

from __future__ import annotations

import json
import os

from prometheus_client import generate_latest
from support.expositions import samples
from support.results import NOW, RUN, make_result

from sentinel.metrics.exposition import Exposition
from sentinel.metrics.families import MAX_LABEL_VALUES
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, Gpu, NodeMeasurements

MACHINE = NodeMeasurements(
    host_values={"host_cpu": 0.5, "host_memory_used": 3.0, "host_memory_total": 9.0},
    free_bytes={"state": 50.0, "output": 7.0},
    gpus=(
        Gpu(0, "GPU-a", "H100", dict.fromkeys(GPU_SIGNALS, 1.0), ("power_cap",), frozenset({7})),
        Gpu(1, "GPU-b", "H100", {"gpu_xid": 79.0}),
    ),
    ranks_by_gpu={0: [4], 1: []},
    measured_at={"gpu": NOW, "host": NOW + 1},
)


def make_exposition(*results, machine=MACHINE):
    exposition = Exposition(Counters(), {}, run=RUN, machine=lambda: machine)
    for result in results:
        exposition.update(result)
    return exposition


def metadata(rank=0, values=None, **attributes):
    return make_result(Event.METADATA, rank=rank, attributes=attributes, values=values or {})


def test_every_gpu_has_a_series_of_each_measured_signal():
    shown = samples(make_exposition(metadata(**{"slurm/job_id": "4711"})))

    for name in GPU_SIGNALS:
        assert (SIGNALS[name].metric, "0") in shown
    assert shown["sentinel_gpu_xid", "1"] == 79.0
    assert ("sentinel_gpu_power_watts", "1") not in shown
    assert (shown["sentinel_gpu_up", "0"], shown["sentinel_gpu_up", "1"]) == (1.0, 0.0)
    assert shown["sentinel_gpu_info", "0", "H100", os.uname().nodename, "4", "4711", "GPU-a"] == 1.0
    assert shown["sentinel_gpu_throttle_reason", "0", "power_cap"] == 1.0


def test_host_and_disks_are_exported():
    shown = samples(make_exposition())

    assert shown["sentinel_host_cpu_ratio",] == 0.5
    assert shown["sentinel_host_memory_capacity_bytes",] == 9.0
    assert shown["sentinel_disk_free_bytes", "output"] == 7.0
    assert shown["sentinel_machine_sample_timestamp_seconds", "gpu"] == NOW


def test_a_part_without_measurements_has_no_series():
    shown = samples(make_exposition(machine=NodeMeasurements()))

    assert not [key for key in shown if key[0].startswith(("sentinel_gpu", "sentinel_host"))]


def test_node_signals_logged_by_the_trainer_make_no_second_family():
    """Two families of one name would make the exposition invalid."""
    logged = dict.fromkeys((*GPU_SIGNALS, *HOST_SIGNALS), 5.0)
    text = generate_latest(make_exposition(make_result(values=logged)).registry).decode()

    names = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_the_state_has_the_machine_as_json():
    machine = make_exposition(make_result(Event.START)).state()["machine"]

    assert json.loads(json.dumps(machine)) == machine
    assert machine["gpus"][0]["ranks"] == [4]
    assert machine["gpus"][0]["gpu_power"] == 1.0
    assert (machine["gpus"][1]["up"], machine["disks"]["output"]) == (False, 7.0)


def test_settings_are_exported_by_name():
    shown = samples(make_exposition(metadata(values={"beta": 0.1, "max_steps": 1234567.0})))

    assert shown["sentinel_run_setting", "beta"] == 0.1
    assert shown["sentinel_run_setting", "max_steps"] == 1234567.0


def test_the_number_of_exported_settings_is_bounded():
    shown = samples(
        make_exposition(metadata(values={f"key{i}": 1.0 for i in range(2 * MAX_LABEL_VALUES)}))
    )

    assert len([key for key in shown if key[0] == "sentinel_run_setting"]) == MAX_LABEL_VALUES


def test_a_failed_patch_is_down_and_its_ranks_are_counted():
    shown = samples(
        make_exposition(
            metadata(
                0, **{"patch/trl": "on", "patch/deepspeed": "on, without DeepSpeedEngine.step"}
            ),
            metadata(1, **{"patch/trl": "off: TypeError in on_log", "patch/deepspeed": "on"}),
        )
    )

    assert (shown["sentinel_patch_up", "trl"], shown["sentinel_patch_up", "deepspeed"]) == (
        0.0,
        1.0,
    )
    assert shown["sentinel_patch_ranks", "trl", "on"] == 1.0
    assert shown["sentinel_patch_ranks", "trl", "off"] == 1.0
    assert shown["sentinel_patch_ranks", "deepspeed", "partial"] == 1.0


def test_the_state_has_the_ranks_of_each_patch_status():
    shown = make_exposition(*(metadata(rank, **{"patch/trl": "on"}) for rank in (1, 0)))
    shown.update(metadata(2, **{"patch/trl": "off: TypeError in on_log"}))

    assert shown.state()["patches"] == {"trl": {"on": [0, 1], "off: TypeError in on_log": [2]}}


def test_the_state_has_metadata_and_settings_together():
    state = make_exposition(metadata(model="qwen", values={"beta": 0.1})).state()["metadata"]

    assert state == {"beta": 0.1, "model": "qwen"}
