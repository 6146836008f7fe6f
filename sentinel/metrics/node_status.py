"""Nodes told: the nodes of a run, and where it is judged, in the words that people read.

What is told comes from `cluster` in the state of an agent, as `Nodes.state` gives it; where that is
missing, as of an agent of before there were nodes, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentinel.metrics.cluster_families import head_address, is_follower, is_isolated
from sentinel.stats.number_ranges import format_ranges

CLOCK_SKEW_TOLERANCE_SECONDS = 5.0
"""Clocks that differ by less are as good as equal."""

MAX_HEALTHY_NODES_LISTED = 8
"""Nodes that are told one by one though nothing is wrong with them."""


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks in a few words.

    >>> listed([0, 1, 2, 3, 6, 8, 9]), listed([])
    ('0-3, 6, 8-9', '')
    """
    return ", ".join(format_ranges(ranks))


def describe_head(state: Mapping[str, Any]) -> str:
    """Where the run is judged, if that is not simply here.

    >>> judged_at({"cluster": {"role": "follower", "head": "gpu-a:14007", "connected": True}})
    'judged at gpu-a:14007'
    """
    cluster = state.get("cluster", {})
    if is_isolated(cluster, state.get("metadata", {})):
        return "judged here, for its own ranks alone: no head was reached"
    if not is_follower(cluster):
        return ""
    head = head_address(cluster)
    if cluster.get("connected"):
        return f"judged at {head}"
    waits = f"; {format_bytes(cluster.get('spooled_bytes', 0))} wait"
    since = f" for {format_duration(cluster.get('silent_seconds', 0.0))}" if head else " yet"
    return f"judged at {head or 'another node'}, which has not been reached{since}{waits}"


def node_lines(state: Mapping[str, Any]) -> Iterator[str]:
    """A line for each node of a run that has several; of many only those that are not well."""
    cluster = state.get("cluster", {})
    known = cluster.get("nodes", [])
    if len(known) < 2:
        return
    shown = [
        node for node in known if len(known) <= MAX_HEALTHY_NODES_LISTED or not _is_healthy(node)
    ]
    yield from map(_node_line, shown)
    if rest := len(known) - len(shown):
        yield f"{rest} {'others are' if shown else 'nodes are'} up, or have ended well"


def format_clock_skew(node: Mapping[str, Any]) -> str:
    """How far the clock of a node is off; nothing where that does not matter.

    >>> clock_of({"skew_seconds": -3600.0}), clock_of({"skew_seconds": 0.2})
    ('1 h ahead', '')
    """
    skew = float(node.get("skew_seconds", 0.0))
    if abs(skew) <= CLOCK_SKEW_TOLERANCE_SECONDS:
        return ""
    return f"{format_duration(abs(skew))} {'behind' if skew > 0 else 'ahead'}"


def format_duration(seconds: float) -> str:
    """A duration in its largest unit.

    >>> seconds(12.3), seconds(600), seconds(7300.0)
    ('12 s', '10 min', '2 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"


def format_bytes(byte_count: float) -> str:
    """A size in MB, or kB where it is small.

    >>> size(2_500_000), size(800)
    ('2.5 MB', '1 kB')
    """
    return f"{byte_count / 1e6:.1f} MB" if byte_count >= 1e5 else f"{-(-byte_count // 1000):.0f} kB"


def _is_healthy(node: Mapping[str, Any]) -> bool:
    return node.get("state") in {"up", "ended"} and not format_clock_skew(node)


def _node_line(node: Mapping[str, Any]) -> str:
    ranks = node.get("ranks", [])
    who = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}" if ranks else "no ranks"
    words = [who, str(node.get("state", ""))]
    if node.get("state") == "lost":
        words[-1] += f", not heard for {format_duration(node.get('silent_seconds', 0.0))}"
    if clock := format_clock_skew(node):
        words.append(f"its clock is {clock}")
    return f"node {node.get('host', '')}: {', '.join(words)}"
