"""NVML values become signals in base units; unsupported values are omitted."""

from __future__ import annotations

import sys

import pytest
from support.fake_nvml import Card, FakeNvml, NVMLError

from sentinel.live.node.nvml import NvmlNotInstalledError, NvmlReader
from sentinel.signals.hardware import GPU_SIGNALS


def test_every_signal_is_in_its_base_unit():
    card = Card(utilisation=37, used=3, total=9, milliwatts=425_500, celsius=71, ecc=2)
    (gpu,) = NvmlReader(FakeNvml([card])).read_gpus()

    assert set(gpu.values) == set(GPU_SIGNALS)
    assert gpu.values == {
        "gpu_utilisation": 0.37,
        "gpu_memory_used": 3.0,
        "gpu_memory_total": 9.0,
        "gpu_power": 425.5,
        "gpu_temperature": 71.0,
        "gpu_ecc_errors": 2.0,
        "gpu_xid": 0.0,
        "gpu_throttled": 0.0,
    }
    assert (gpu.index, gpu.uuid, gpu.name, gpu.is_lost) == (0, "GPU-aaaa", "H100", False)


def test_unsupported_values_are_omitted():
    bare = Card(utilisation=None, milliwatts=None, celsius=None, ecc=None, reasons=None)
    (gpu,) = NvmlReader(FakeNvml([bare], listens=False)).read_gpus()

    assert set(gpu.values) == {"gpu_memory_used", "gpu_memory_total"}
    assert not gpu.is_lost


def test_names_as_bytes_are_decoded():
    (gpu,) = NvmlReader(FakeNvml([Card(uuid=b"GPU-1", name=b"A100")])).read_gpus()

    assert (gpu.uuid, gpu.name) == ("GPU-1", "A100")


def test_the_last_xid_error_is_reported_until_a_newer_one():
    library = FakeNvml([Card(), Card(uuid="GPU-bbbb")])
    nvml = NvmlReader(library)
    library.events.extend([(1, 31), (1, 43)])

    assert [gpu.values["gpu_xid"] for gpu in nvml.read_gpus()] == [0.0, 43.0]
    assert [gpu.values["gpu_xid"] for gpu in nvml.read_gpus()] == [0.0, 43.0]


@pytest.mark.fault("A27")
def test_a_lost_gpu_reports_its_last_xid_error():
    """A lost GPU raises an error for every query; the others still answer."""
    library = FakeNvml([Card(), Card()])
    nvml = NvmlReader(library)
    nvml.read_gpus()
    library.cards[1].lost = True
    library.events.append((1, 79))

    well, lost = nvml.read_gpus()
    assert (well.is_lost, lost.is_lost) == (False, True)
    assert lost.values == {"gpu_xid": 79.0}


@pytest.mark.fault("A27")
def test_the_driver_is_reopened_when_every_gpu_is_lost():
    """The driver may have been unloaded and loaded again."""
    library = FakeNvml()
    nvml = NvmlReader(library)
    library.cards[0].lost = True
    assert nvml.read_gpus()[0].is_lost
    assert library.opened == 0

    library.cards[0].lost = False
    assert not nvml.read_gpus()[0].is_lost
    assert library.opened == 1


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x4, ("power_cap",)),
        (0x48, ("slowdown", "thermal_hardware")),
        (
            0x1FF,
            ("power_cap", "slowdown", "thermal_software", "thermal_hardware", "power_brake"),
        ),
    ],
)
def test_throttle_reasons_are_named(bits, reasons):
    (gpu,) = NvmlReader(FakeNvml([Card(reasons=bits)])).read_gpus()

    assert gpu.throttle_reasons == reasons
    assert gpu.values["gpu_throttled"] == float(bool(reasons))


def test_the_pids_on_a_gpu_are_reported():
    (gpu,) = NvmlReader(FakeNvml([Card(pids=(7, 9))])).read_gpus()

    assert gpu.pids == {7, 9}


def test_a_failed_initialization_is_retried():
    library = FakeNvml(refusal=NVMLError("Driver Not Loaded"))
    nvml = NvmlReader(library)
    with pytest.raises(NVMLError):
        nvml.read_gpus()

    library.refusal = None
    assert len(nvml.read_gpus()) == 1


def test_a_missing_library_is_reported_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(NvmlNotInstalledError, match=r"pip install 'train-sentinel\[gpu\]'"):
        NvmlReader(driver_paths=[tmp_path]).read_gpus()


def test_a_node_without_a_driver_has_no_gpus_and_needs_no_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert NvmlReader(driver_paths=[tmp_path / "absent"]).read_gpus() == []


def test_the_library_has_every_name_of_the_fake():
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]

    assert [name for name in names if not hasattr(pynvml, name)] == []
