"""Nodes told: the nodes of a run, and where it is judged, in the words that people read.

What is told comes from `cluster` in the state of an agent, as `Nodes.state` gives it; where that is
missing, as of an agent of before there were nodes, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentinel.metrics.cluster_families import address_of, is_orphan, is_post
from sentinel.stats.number_ranges import spans

FAR_SECONDS = 5.0
"""Clocks that differ by less are as good as equal."""

MOST_NODES = 8
"""Nodes that are told one by one though nothing is wrong with them."""


def listed(ranks: Iterable[int]) -> str:
    """Ranks in a few words.

    >>> listed([0, 1, 2, 3, 6, 8, 9]), listed([])
    ('0-3, 6, 8-9', '')
    """
    return ", ".join(spans(ranks))


def judged_at(state: Mapping[str, Any]) -> str:
    """Where the run is judged, if that is not simply here.

    >>> judged_at({"cluster": {"role": "post", "head": "gpu-a:14007", "linked": True}})
    'judged at gpu-a:14007'
    """
    cluster = state.get("cluster", {})
    if is_orphan(cluster, state.get("about", {})):
        return "judged here, for its own ranks alone: no head was reached"
    if not is_post(cluster):
        return ""
    head = address_of(cluster)
    if cluster.get("linked"):
        return f"judged at {head}"
    waits = f"; {size(cluster.get('spooled_bytes', 0))} wait"
    since = f" for {seconds(cluster.get('silent_seconds', 0.0))}" if head else " yet"
    return f"judged at {head or 'another node'}, which has not been reached{since}{waits}"


def nodes(state: Mapping[str, Any]) -> Iterator[str]:
    """A line for each node of a run that has several; of many only those that are not well."""
    cluster = state.get("cluster", {})
    known = cluster.get("nodes", [])
    if len(known) < 2:
        return
    shown = [node for node in known if len(known) <= MOST_NODES or not _is_well(node)]
    yield from map(_line, shown)
    if rest := len(known) - len(shown):
        yield f"{rest} {'others are' if shown else 'nodes are'} up, or have ended well"


def clock_of(node: Mapping[str, Any]) -> str:
    """How far the clock of a node is off; nothing where that does not matter.

    >>> clock_of({"skew_seconds": -3600.0}), clock_of({"skew_seconds": 0.2})
    ('1 h ahead', '')
    """
    skew = float(node.get("skew_seconds", 0.0))
    if abs(skew) <= FAR_SECONDS:
        return ""
    return f"{seconds(abs(skew))} {'behind' if skew > 0 else 'ahead'}"


def seconds(count: float) -> str:
    """A duration in its largest unit.

    >>> seconds(12.3), seconds(600), seconds(7300.0)
    ('12 s', '10 min', '2 h')
    """
    if count < 120:
        return f"{count:.0f} s"
    return f"{count / 60:.0f} min" if count < 3600 else f"{count / 3600:.0f} h"


def size(count: float) -> str:
    """A size in MB, or kB where it is small.

    >>> size(2_500_000), size(800)
    ('2.5 MB', '1 kB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{-(-count // 1000):.0f} kB"


def _is_well(node: Mapping[str, Any]) -> bool:
    return node.get("state") in {"up", "ended"} and not clock_of(node)


def _line(node: Mapping[str, Any]) -> str:
    ranks = node.get("ranks", [])
    who = f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}" if ranks else "no ranks"
    words = [who, str(node.get("state", ""))]
    if node.get("state") == "lost":
        words[-1] += f", not heard for {seconds(node.get('silent_seconds', 0.0))}"
    if clock := clock_of(node):
        words.append(f"its clock is {clock}")
    return f"node {node.get('host', '')}: {', '.join(words)}"
