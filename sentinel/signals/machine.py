"""Machine: what the agent reads from the node itself, GPU by GPU and host by host."""

from __future__ import annotations

from sentinel.signals.signal import CombineRule, Signal

_MEAN, _SUM, _MAX, _MIN = CombineRule.MEAN, CombineRule.SUM, CombineRule.MAX, CombineRule.MIN

GPU = (
    Signal(
        "gpu_utilisation",
        "ratio",
        _MEAN,
        "Share of the time in which the GPU had work; says nothing of how well it was used.",
        entity="gpu",
    ),
    Signal("gpu_memory_used", "bytes", _MAX, "GPU memory in use, by whomever.", entity="gpu"),
    # A Prometheus name with "total" in it is a counter's.
    Signal(
        "gpu_memory_total",
        "bytes",
        _MIN,
        "GPU memory there is.",
        family="gpu_memory_capacity",
        entity="gpu",
    ),
    Signal("gpu_power", "watts", _SUM, "Power the GPU draws.", entity="gpu"),
    Signal("gpu_temperature", "celsius", _MAX, "Temperature of the GPU.", entity="gpu"),
    Signal(
        "gpu_ecc_errors",
        "",
        _SUM,
        "Memory errors that the GPU could not correct, since it was last reset.",
        entity="gpu",
    ),
    Signal(
        "gpu_xid",
        "",
        _MAX,
        "Number of the last error the driver reported of the GPU; 0 for none.",
        entity="gpu",
    ),
    Signal(
        "gpu_throttled",
        "",
        _MAX,
        "1 while the GPU runs below its clock because of heat or power, else 0.",
        entity="gpu",
    ),
)

HOST = (
    Signal("host_cpu", "ratio", _MEAN, "Share of the host's CPU time that is used.", entity="host"),
    Signal("host_memory_used", "bytes", _MAX, "Host memory in use.", entity="host"),
    Signal(
        "host_memory_total",
        "bytes",
        _MIN,
        "Host memory there is.",
        family="host_memory_capacity",
        entity="host",
    ),
    Signal(
        "disk_free",
        "bytes",
        _MIN,
        "Room left on a disk that the run writes to.",
        entity="disk",
    ),
)
