"""Tally: what sentinel itself did, spent and lost, counted so that nothing goes missing quietly."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CounterFamily:
    """One self-accounting counter: Prometheus family, its label, and what it says."""

    family: str
    label: str
    help: str


COUNTER_FAMILIES = (
    CounterFamily("sentinel_dropped_records_total", "reason", "Records or values lost or refused."),
    CounterFamily("sentinel_nonfinite_total", "signal", "Values that were NaN or infinite."),
    CounterFamily(
        "sentinel_client_errors_total", "rank", "Errors of ours swallowed inside the trainer."
    ),
    CounterFamily("sentinel_detector_errors_total", "detector", "Failures of a detector."),
    CounterFamily("sentinel_sink_deliveries_total", "outcome", "Pages by what became of them."),
    CounterFamily(
        "sentinel_head_connection_rejected_total",
        "reason",
        "Messages of other agents that were refused.",
    ),
    CounterFamily("sentinel_node_read_errors_total", "part", "Looks at the machine that failed."),
    CounterFamily(
        "sentinel_client_overhead_seconds_total", "rank", "Time spent inside the training thread."
    ),
)


@dataclass
class Counters:
    """Counters by family and label value, kept by the agent and shown on `/metrics`.

    >>> tally = Tally()
    >>> tally.add("sentinel_dropped_records_total", "late", 2)
    >>> tally.counts["sentinel_dropped_records_total", "late"]
    2.0
    """

    values: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, family: str, label: str, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.values[family, label] += amount

    def set(self, family: str, label: str, total: float) -> None:
        """Take over a total that somebody else counts, such as a ring's header."""
        self.values[family, label] = total
