"""Signals that the agent measures on the node, per GPU and per host."""

from __future__ import annotations

from sentinel.signals.signal import CombineRule, Signal

_MEAN, _SUM, _MAX, _MIN = CombineRule.MEAN, CombineRule.SUM, CombineRule.MAX, CombineRule.MIN

GPU = (
    Signal(
        "gpu_utilisation",
        "ratio",
        _MEAN,
        "Share of time in which the GPU was busy; not a measure of how efficiently it was used.",
        entity="gpu",
    ),
    Signal("gpu_memory_used", "bytes", _MAX, "GPU memory in use by all processes.", entity="gpu"),
    # Prometheus reserves names with "total" for counters.
    Signal(
        "gpu_memory_total",
        "bytes",
        _MIN,
        "Total GPU memory.",
        family="gpu_memory_capacity",
        entity="gpu",
    ),
    Signal("gpu_power", "watts", _SUM, "Power draw of the GPU.", entity="gpu"),
    Signal("gpu_temperature", "celsius", _MAX, "Temperature of the GPU.", entity="gpu"),
    Signal(
        "gpu_ecc_errors",
        "",
        _SUM,
        "Uncorrectable memory errors of the GPU since its last reset.",
        entity="gpu",
    ),
    Signal(
        "gpu_xid",
        "",
        _MAX,
        "Number of the last error (XID) that the driver reported for the GPU; 0 for none.",
        entity="gpu",
    ),
    Signal(
        "gpu_throttled",
        "",
        _MAX,
        "1 while heat or power limits the clock of the GPU, else 0.",
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
        "Total host memory.",
        family="host_memory_capacity",
        entity="host",
    ),
    Signal(
        "host_network_received",
        "bytes_per_second",
        _SUM,
        "Bytes per second that the host receives from other machines, RDMA included.",
        entity="host",
    ),
    Signal(
        "host_network_sent",
        "bytes_per_second",
        _SUM,
        "Bytes per second that the host sends to other machines, RDMA included.",
        entity="host",
    ),
    Signal(
        "host_disk_read",
        "bytes_per_second",
        _SUM,
        "Bytes per second read from the host's disks; file servers are network.",
        entity="host",
    ),
    Signal(
        "host_disk_written",
        "bytes_per_second",
        _SUM,
        "Bytes per second written to the host's disks; file servers are network.",
        entity="host",
    ),
    Signal(
        "disk_free",
        "bytes",
        _MIN,
        "Free space on a disk that the run writes to.",
        entity="disk",
    ),
)
