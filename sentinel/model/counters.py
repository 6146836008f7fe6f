"""Counters of sentinel itself: lost records, errors, deliveries and overhead."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple


class CounterFamily(NamedTuple):
    """A Prometheus counter with one label; `help` is its HELP text."""

    family: str
    label: str
    help: str


COUNTER_FAMILIES = (
    CounterFamily(
        "sentinel_dropped_records_total", "reason", "Records or values lost or rejected."
    ),
    CounterFamily("sentinel_nonfinite_total", "signal", "Values that were NaN or infinite."),
    CounterFamily(
        "sentinel_client_errors_total", "rank", "Errors of sentinel caught inside the trainer."
    ),
    CounterFamily("sentinel_detector_errors_total", "detector", "Exceptions raised by a detector."),
    CounterFamily(
        "sentinel_sink_deliveries_total",
        "outcome",
        "Delivery attempts of notifications by outcome.",
    ),
    CounterFamily(
        "sentinel_sink_reports_total", "outcome", "Reports attached to the ends of cases."
    ),
    CounterFamily(
        "sentinel_otlp_exports_total", "outcome", "Exports to an OpenTelemetry collector."
    ),
    CounterFamily(
        "sentinel_head_connection_rejected_total",
        "reason",
        "Messages from other agents that were rejected.",
    ),
    CounterFamily("sentinel_node_read_errors_total", "part", "Failed reads of hardware metrics."),
    CounterFamily(
        "sentinel_client_overhead_seconds_total", "rank", "Time spent in the training thread."
    ),
    CounterFamily(
        "sentinel_config_errors_total", "setting", "Invalid settings that the agent ignores."
    ),
)


@dataclass
class Counters:
    """The agent's counters by family and label value, exported on `/metrics`.

    >>> counters = Counters()
    >>> counters.add("sentinel_dropped_records_total", "late", 2)
    >>> counters.values["sentinel_dropped_records_total", "late"]
    2.0
    """

    values: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, family: str, label: str, amount: float = 1.0) -> None:
        """Increase the counter by `amount`."""
        self.values[family, label] += amount

    def set(self, family: str, label: str, total: float) -> None:
        """Set the counter to a total that is counted elsewhere, such as in the header of a ring."""
        self.values[family, label] = total
