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

from sentinel.model.hardware import GPU_SIGNALS, MEASURED
from sentinel.signals.catalogue import Combine, combine_rule

Values = Mapping[str, float]

_EXTREMES = {
    f"{name}_{which}": rule
    for name in GPU_SIGNALS
    for which, rule in (("min", Combine.MIN), ("max", Combine.MAX))
}
_COUNTS = ("gpu_ecc_errors",)
"""Counted since long ago: of several nodes it is told what came since each was first heard, or one
that joins would bring its old errors as news."""

_DISK = "disk_free_"
_SIZES = frozenset(name for name in MEASURED if name.endswith("_total"))
_FOLDS: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    Combine.SUM: fsum,
    Combine.MAX: max,
    Combine.MIN: min,
}


@lru_cache(maxsize=4096)
def rule_of(name: str) -> Combine | None:
    """How that value of a TICK combines over nodes; None if it is not measured of a machine.

    >>> rule_of("gpu_utilisation_min"), rule_of("idle_seconds")
    (<Combine.MIN: 'min'>, None)
    """
    if name in MEASURED:
        return combine_rule(name)
    if name == "gpu_ranks":
        return Combine.SUM
    return Combine.MIN if name.startswith(_DISK) else _EXTREMES.get(name)


def measured(values: Values) -> dict[str, float]:
    """Those of a TICK's values that are measured of a machine."""
    return {name: value for name, value in values.items() if rule_of(name) is not None}


def joined(told: Sequence[tuple[str, Values]]) -> tuple[dict[str, float], dict[str, str]]:
    """What several hosts measured as one, and by `<signal>_host` on which of them it is worst.

    Means are over hosts, each counted once. A single host's values stay as they are.
    """
    if len(told) == 1:
        return dict(told[0][1]), {}
    values: dict[str, float] = {}
    facts: dict[str, str] = {}
    for name in dict.fromkeys(name for _, each in told for name in each):
        rule = rule_of(name)
        found = [(each[name], host) for host, each in told if name in each]
        numbers = [value for value, _ in found]
        values[name] = _FOLDS.get(rule, fmean)(numbers) if rule else numbers[0]
        if rule in _FOLDS and name not in _SIZES and max(numbers) > min(numbers):
            facts[f"{name}_host"] = (min if rule is Combine.MIN else max)(found)[1]
    return values, facts


@dataclass
class Machines:
    """The newest that each node told of its machine, and who told since the run's was told.

    `nodes` are as many as may be expected to tell.
    """

    nodes: int = 1
    newest: dict[str, tuple[str, Values]] = field(default_factory=dict)
    first: dict[tuple[str, str], float] = field(default_factory=dict)
    since: set[str] = field(default_factory=set)
    due: bool = False

    def hear(self, node: str, host: str, values: Values) -> Values:
        """Take over what is measured among the values of a new TICK of that node; that it is."""
        own = measured(values)
        if own:
            self.due = self.due or node in self.since
            self.newest[node] = host, {**own, **self._grown(node, own)}
            self.since.add(node)
            every = len(self.newest) >= self.nodes and self.since >= self.newest.keys()
            self.due = self.due or every
        return own

    def forget(self, node: str) -> None:
        """That node is lost, or has left: what it told is no longer the present."""
        self.newest.pop(node, None)
        self.since.discard(node)

    def news(self) -> tuple[dict[str, float], dict[str, str]]:
        """Values and facts for the run's TICK, once they are due; else none."""
        if not self.due or not self.newest:
            return {}, {}
        self.since, self.due = set(), False
        return joined([*self.newest.values()])

    def _grown(self, node: str, own: Values) -> dict[str, float]:
        """What that node's counts have grown by; a count that fell was begun anew."""
        told = {name: own[name] for name in _COUNTS if name in own and self.nodes > 1}
        for name, count in told.items():
            key = (node, name)
            self.first[key] = min(count, self.first.get(key, count))
        return {name: count - self.first[node, name] for name, count in told.items()}
