"""Machines: what the agents measured of their nodes, brought together for the run.

Each node looks at its own pace. What one of them says alone is not the run's: two disks, told of in
turns, would seem to be one that fills and empties. So the newest of all is told as one, once each
has told of something new, or one of them of something newer still.
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
    f"{name}_{which}": rule
    for name in GPU_SIGNALS
    for which, rule in (("min", CombineRule.MIN), ("max", CombineRule.MAX))
}
_CUMULATIVE_COUNTERS = ("gpu_ecc_errors",)
"""Counted since long ago: of several nodes it is told what came since each was first heard, or one
that joins would bring its old errors as news."""

_DISK_PREFIX = "disk_free_"
_CAPACITY_SIGNALS = frozenset(name for name in NODE_SIGNALS if name.endswith("_total"))
_REDUCERS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: fsum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
}


@lru_cache(maxsize=4096)
def node_combine_rule(name: str) -> CombineRule | None:
    """How that value of a TICK combines over nodes; None if it is not measured of a machine.

    >>> rule_of("gpu_utilisation_min"), rule_of("idle_seconds")
    (<Combine.MIN: 'min'>, None)
    """
    if name in NODE_SIGNALS:
        return get_combine_rule(name)
    if name == "gpu_ranks":
        return CombineRule.SUM
    return CombineRule.MIN if name.startswith(_DISK_PREFIX) else _GPU_EXTREME_RULES.get(name)


def hardware_values(values: Values) -> dict[str, float]:
    """Those of a TICK's values that are measured of a machine."""
    return {name: value for name, value in values.items() if node_combine_rule(name) is not None}


def combine_hosts(
    host_values: Sequence[tuple[str, Values]],
) -> tuple[dict[str, float], dict[str, str]]:
    """What several hosts measured as one, and by `<signal>_host` on which of them it is worst.

    Means are over hosts, each counted once. A single host's values stay as they are.
    """
    if len(host_values) == 1:
        return dict(host_values[0][1]), {}
    values: dict[str, float] = {}
    facts: dict[str, str] = {}
    for name in dict.fromkeys(name for _, each in host_values for name in each):
        rule = node_combine_rule(name)
        found = [(each[name], host) for host, each in host_values if name in each]
        numbers = [value for value, _ in found]
        values[name] = _REDUCERS.get(rule, fmean)(numbers) if rule else numbers[0]
        if rule in _REDUCERS and name not in _CAPACITY_SIGNALS and max(numbers) > min(numbers):
            facts[f"{name}_host"] = (min if rule is CombineRule.MIN else max)(found)[1]
    return values, facts


@dataclass
class NodeHardware:
    """The newest that each node told of its machine, and who told since the run's was told.

    `nodes` are as many as may be expected to tell.
    """

    expected_nodes: int = 1
    latest_by_node: dict[str, tuple[str, Values]] = field(default_factory=dict)
    first_counts: dict[tuple[str, str], float] = field(default_factory=dict)
    updated_nodes: set[str] = field(default_factory=set)
    is_due: bool = False

    def update(self, node: str, host: str, values: Values) -> Values:
        """Take over what is measured among the values of a new TICK of that node; that it is."""
        own = hardware_values(values)
        if own:
            self.is_due = self.is_due or node in self.updated_nodes
            self.latest_by_node[node] = host, {**own, **self._counter_growth(node, own)}
            self.updated_nodes.add(node)
            every = (
                len(self.latest_by_node) >= self.expected_nodes
                and self.updated_nodes >= self.latest_by_node.keys()
            )
            self.is_due = self.is_due or every
        return own

    def forget(self, node: str) -> None:
        """That node is lost, or has left: what it told is no longer the present."""
        self.latest_by_node.pop(node, None)
        self.updated_nodes.discard(node)

    def pop_combined(self) -> tuple[dict[str, float], dict[str, str]]:
        """Values and facts for the run's TICK, once they are due; else none."""
        if not self.is_due or not self.latest_by_node:
            return {}, {}
        self.updated_nodes, self.is_due = set(), False
        return combine_hosts([*self.latest_by_node.values()])

    def _counter_growth(self, node: str, own_values: Values) -> dict[str, float]:
        """What that node's counts have grown by; a count that fell was begun anew."""
        told = {
            name: own_values[name]
            for name in _CUMULATIVE_COUNTERS
            if name in own_values and self.expected_nodes > 1
        }
        for name, count in told.items():
            key = (node, name)
            self.first_counts[key] = min(count, self.first_counts.get(key, count))
        return {name: count - self.first_counts[node, name] for name, count in told.items()}
