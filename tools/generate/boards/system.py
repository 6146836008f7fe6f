"""The board of the hardware: GPUs and hosts, also as DCGM and node exporter measure them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS
from tools.generate.boards.shared_panels import (
    AVERAGE,
    CLUSTER_VARIABLE,
    RUN_VARIABLE,
    extremes,
    lines_panel,
    of_all_nodes,
    run_board,
    signal_panel,
)
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import (
    BAD,
    GOOD,
    PanelOptions,
    PanelQuery,
    collapsible_row,
    state_timeline_panel,
    table_panel,
    text_panel,
)

_GPUS = f"max by (uuid, node, gpu, ranks) ({of_all_nodes('sentinel_gpu_info')})"
_NODES = f"max by (node) ({of_all_nodes('sentinel_gpu_info')})"

_DCGM_TEXT = (
    "Needs [dcgm-exporter](https://github.com/NVIDIA/dcgm-exporter) on the nodes, scraped by the "
    "same Prometheus. Its label `UUID` is joined with `uuid` of `sentinel_gpu_info`, which adds "
    "node, number and ranks. A panel stays empty if the exporter does not collect its field."
)
_NODE_TEXT = (
    "Needs [node_exporter](https://github.com/prometheus/node_exporter) on the nodes, scraped by "
    "the same Prometheus. `nodename` of `node_uname_info` is joined with `node` of "
    "`sentinel_gpu_info`: a node of the run without a GPU is not shown. In Kubernetes the row is "
    "empty: there `node` is the name of the Pod."
)


def system_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board; the rows of other exporters are collapsed."""
    panels = [
        *_gpu_panels(),
        *(signal_panel(signal, docs) for signal in SIGNAL_GROUPS["GPU"]),
        collapsible_row("Host"),
        *(signal_panel(signal, docs) for signal in SIGNAL_GROUPS["Host"]),
        signal_panel(SIGNALS["data_wait"], docs),
        collapsible_row("GPU by DCGM (optional)", _dcgm_panels()),
        collapsible_row("Host by node exporter (optional)", _node_exporter_panels()),
    ]
    return run_board(
        "System",
        "sentinel-system",
        "GPUs, hosts and disks of the nodes of a run.",
        panels,
        [CLUSTER_VARIABLE, RUN_VARIABLE],
    )


def _gpu_panels() -> Iterator[Any]:
    labels = ("node", "gpu", "name", "ranks", "uuid")
    info = f"max by ({', '.join(labels)}) ({of_all_nodes('sentinel_gpu_info')})"
    yield table_panel(
        PanelOptions(
            "GPUs",
            "GPUs of the run and the ranks on them. Metric: sentinel_gpu_info",
            unit="none",
            width=8,
        ),
        PanelQuery(info),
        {},
        {name: name.upper() if name in ("gpu", "uuid") else name.capitalize() for name in labels},
    )
    up = of_all_nodes("sentinel_gpu_up")
    lost = f'label_replace(({up}) == 0, "part", " GPU $1", "gpu", "(.+)")'
    yield state_timeline_panel(
        PanelOptions(
            "GPUs that answer",
            "A row per node, and one for each GPU that fell off the bus: drain the node. "
            "Metric: sentinel_gpu_up",
            width=8,
        ),
        PanelQuery(f"min by (cluster, instance) ({up}) or {lost}", "{{instance}}{{part}}"),
        {0: ("lost", BAD), 1: ("up", GOOD)},
    )
    yield state_timeline_panel(
        PanelOptions(
            "Reduced clocks",
            "GPUs whose clock is reduced, by reason. Metric: sentinel_gpu_throttle_reason",
            width=8,
        ),
        PanelQuery(
            of_all_nodes("sentinel_gpu_throttle_reason"), "{{instance}} GPU {{gpu}} {{reason}}"
        ),
        {0: ("no", GOOD), 1: ("reduced", BAD)},
    )


def _dcgm_panels() -> Iterator[Any]:
    yield text_panel("What this row needs", _DCGM_TEXT, height=3)
    yield _dcgm_panel(
        "Tensor cores",
        "Share of time in which they work.",
        "PROF_PIPE_TENSOR_ACTIVE",
        "percentunit",
    )
    yield _dcgm_panel(
        "Streaming multiprocessors", "Share of time in which they work.", "PROF_SM_ACTIVE",
        "percentunit",
    )  # fmt: skip
    yield _dcgm_panel(
        "Memory interface",
        "Share of time in which it transfers.",
        "PROF_DRAM_ACTIVE",
        "percentunit",
    )
    yield _dcgm_panel("Power", "Power draw.", "DEV_POWER_USAGE", "watt")
    yield _dcgm_panel("Memory temperature", "Of the HBM.", "DEV_MEMORY_TEMP", "celsius")
    yield _dcgm_panel(
        "NVLink bandwidth",
        "Both directions.",
        "PROF_NVLINK_TX_BYTES",
        "Bps",
        also="PROF_NVLINK_RX_BYTES",
    )


def _dcgm_panel(title: str, text: str, field: str, unit: str, also: str = "") -> Any:
    def measured(of_range: str) -> str:
        fields = (of_range.format(f"DCGM_FI_{name}") for name in (field, also) if name)
        by_uuid = f'label_replace({" + ".join(fields)}, "uuid", "$1", "UUID", "(.+)")'
        # One GPU may be measured by two exporters.
        return f"max by (uuid) ({by_uuid}) * on (uuid) group_right () {_GPUS}"

    expr = extremes(measured("{}"), measured(AVERAGE), "uuid")
    legend = "{{node}} GPU {{gpu}}, ranks {{ranks}}"
    return lines_panel(title, text, PanelQuery(expr, legend), unit=unit)


def _node_exporter_panels() -> Iterator[Any]:
    yield text_panel("What this row needs", _NODE_TEXT, height=3)
    yield _node_panel(
        "Waiting for memory",
        "Share of time in which a process waited for memory: the host is short of it.",
        "rate(node_pressure_memory_waiting_seconds_total{})",
        "percentunit",
    )
    yield _node_panel(
        "Waiting for disks",
        "Share of time in which a process waited for a disk or a file server.",
        "rate(node_pressure_io_waiting_seconds_total{})",
        "percentunit",
    )
    yield _node_panel(
        "Network errors",
        "Packets with errors per second, received and sent.",
        "sum by (instance) (rate(node_network_receive_errs_total{0}) + "
        "rate(node_network_transmit_errs_total{0}))",
        "pps",
    )


def _node_panel(title: str, text: str, expr: str, unit: str) -> Any:
    names = 'label_replace(node_uname_info, "node", "$1", "nodename", "(.+)")'
    nodes = f"max by (instance, node) ({names}) and on (node) {_NODES}"
    shown, ranked = (
        f"({expr.format(window)}) * on (instance) group_left (node) ({nodes})"
        for window in ("[$__rate_interval]", "[$__range] @ end()")
    )
    query = PanelQuery(extremes(shown, ranked, "instance"), "{{node}}")
    return lines_panel(title, text, query, unit=unit)
