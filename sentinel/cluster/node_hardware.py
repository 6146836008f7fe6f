"""Combines the measurements of all machines (GPUs, host, disks) into those of the run.

Each node measures at its own interval. The values of one node are not those of the run: two disks,
reported in turn, would look like one that fills and empties. The newest values of all nodes are
therefore combined once every node has reported new ones, or one node has reported twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import fsum
from statistics import fmean

from sentinel.signals.catalogue import CombineRule, get_combine_rule
from sentinel.signals.hardware import GPU_SIGNALS, NODE_SIGNALS

Values = Mapping[str, float]

_GPU_EXTREME_RULES = {
    f"{name}_{suffix}": rule
    for name in GPU_SIGNALS
    for suffix, rule in (("min", CombineRule.MIN), ("max", CombineRule.MAX))
}
_CUMULATIVE_COUNTERS = ("gpu_ecc_errors",)
"""Counters that started before the run. Of several nodes, the growth since each node joined is
combined, since old errors of a node that joins are not new."""

_DISK_PREFIX = "disk_free_"
_CAPACITY_SIGNALS = frozenset(name for name in NODE_SIGNALS if name.endswith("_total"))
_REDUCERS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: fsum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
}


@lru_cache(maxsize=4096)
def node_combine_rule(name: str) -> CombineRule | None:
    """How that value of a heartbeat is combined over nodes; None if it is not a measurement.

    >>> node_combine_rule("gpu_utilisation_min"), node_combine_rule("idle_seconds")
    (<CombineRule.MIN: 'min'>, None)
    """
    if name in NODE_SIGNALS:
        return get_combine_rule(name)
    if name == "gpu_ranks":
        return CombineRule.SUM
    return CombineRule.MIN if name.startswith(_DISK_PREFIX) else _GPU_EXTREME_RULES.get(name)


def hardware_values(values: Values) -> dict[str, float]:
    """Those values of a heartbeat that are measurements of a machine."""
    return {name: value for name, value in values.items() if node_combine_rule(name) is not None}


def combine_hosts(
    host_values: Sequence[tuple[str, Values]],
) -> tuple[dict[str, float], dict[str, str]]:
    """Values combined over hosts, and attributes `<signal>_host`: the host with the worst value.

    Means weigh each host equally. The values of a single host are unchanged.
    """
    if len(host_values) == 1:
        return dict(host_values[0][1]), {}
    values: dict[str, float] = {}
    worst_hosts: dict[str, str] = {}
    for name in dict.fromkeys(name for _, each in host_values for name in each):
        rule = node_combine_rule(name)
        measured = [(each[name], host) for host, each in host_values if name in each]
        numbers = [value for value, _ in measured]
        values[name] = _REDUCERS.get(rule, fmean)(numbers) if rule else numbers[0]
        if rule in _REDUCERS and name not in _CAPACITY_SIGNALS and max(numbers) > min(numbers):
            worst_hosts[f"{name}_host"] = (min if rule is CombineRule.MIN else max)(measured)[1]
    return values, worst_hosts


@dataclass
class NodeHardware:
    """The newest measurements of each node, and which nodes reported since they were combined.

    `expected_nodes` is the number of nodes that report. `latest_by_node` has host and values by
    node.
    """

    expected_nodes: int = 1
    latest_by_node: dict[str, tuple[str, Values]] = field(default_factory=dict)
    first_counts: dict[tuple[str, str], float] = field(default_factory=dict)
    updated_nodes: set[str] = field(default_factory=set)
    is_due: bool = False

    def update(self, node: str, host: str, values: Values) -> Values:
        """Add the measurements in a heartbeat of that node, and return them."""
        own = hardware_values(values)
        if own:
            self.is_due = self.is_due or node in self.updated_nodes
            self.latest_by_node[node] = host, {**own, **self._counter_growth(node, own)}
            self.updated_nodes.add(node)
            is_complete = (
                len(self.latest_by_node) >= self.expected_nodes
                and self.updated_nodes >= self.latest_by_node.keys()
            )
            self.is_due = self.is_due or is_complete
        return own

    def forget(self, node: str) -> None:
        """Drop the measurements of a node that is lost."""
        self.latest_by_node.pop(node, None)
        self.updated_nodes.discard(node)

    def pop_combined(self) -> tuple[dict[str, float], dict[str, str]]:
        """Values and attributes for the heartbeat of the run if they are due, else none."""
        if not self.is_due or not self.latest_by_node:
            return {}, {}
        self.updated_nodes, self.is_due = set(), False
        return combine_hosts([*self.latest_by_node.values()])

    def _counter_growth(self, node: str, own_values: Values) -> dict[str, float]:
        """The growth of that node's cumulative counters; a counter that fell was reset."""
        counts = {
            name: own_values[name]
            for name in _CUMULATIVE_COUNTERS
            if name in own_values and self.expected_nodes > 1
        }
        for name, count in counts.items():
            key = (node, name)
            self.first_counts[key] = min(count, self.first_counts.get(key, count))
        return {name: count - self.first_counts[node, name] for name, count in counts.items()}
