"""Text about the nodes of a run, for `sentinel status` and `sentinel doctor`.

The input is the JSON of `/api/run`; its key `cluster` is that of `AgentRole.status`. Without that
key there is no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.metrics.cluster_families import head_address, is_follower, is_isolated
from sentinel.model.number_ranges import ranges_text
from sentinel.model.quantity_text import format_bytes, format_duration
from sentinel.store.unmonitored import missing_ranks

CLOCK_SKEW_TOLERANCE_SECONDS = 5.0
"""Smaller differences between clocks are not reported."""

MAX_HEALTHY_NODES_LISTED = 8
"""Number of nodes up to which the healthy ones are listed too."""


def describe_head(state: Mapping[str, Any]) -> str:
    """Where the run is processed, if not by this agent; empty otherwise.

    >>> describe_head({"cluster": {"role": "follower", "head": "gpu-a:14007", "connected": True}})
    'processed by the head at gpu-a:14007'
    """
    cluster = state.get("cluster", {})
    if is_isolated(cluster, state.get("metadata", {})):
        return "no head reached: only this node's ranks are processed"
    if not is_follower(cluster):
        return ""
    head = head_address(cluster)
    if cluster.get("connected"):
        return f"processed by the head at {head}"
    waiting = f"{format_bytes(cluster.get('spooled_bytes', 0), digits=2)} waiting to be sent"
    if not head:
        return f"head not reached yet, {waiting}"
    silent = format_duration(cluster.get("silent_seconds", 0.0))
    return f"head at {head} not reached for {silent}, {waiting}"


def node_lines(state: Mapping[str, Any]) -> Iterator[str]:
    """A line for each node of a run with several; with many nodes, only for unhealthy ones."""
    nodes = state.get("cluster", {}).get("nodes", [])
    if len(nodes) < 2 and not missing_ranks(state):
        return
    listed = [
        node for node in nodes if len(nodes) <= MAX_HEALTHY_NODES_LISTED or not _is_healthy(node)
    ]
    yield from map(_node_line, listed)
    if rest := len(nodes) - len(listed):
        others = "other nodes" if listed else "nodes"
        yield f"{rest} {others}: up, or ended without failure"


def report_lines(state: Mapping[str, Any]) -> Iterator[str]:
    """What the head judges, on a follower that is connected to it.

    >>> report = {"state": "running", "step": 41, "cases": []}
    >>> cluster = {"role": "follower", "connected": True, "report": report}
    >>> [*report_lines({"cluster": cluster})]
    ['at the head: running at step 41, no open incident']
    """
    cluster = state.get("cluster", {})
    report = cluster.get("report")
    if not (is_follower(cluster) and cluster.get("connected") and report):
        return
    step = report.get("step")
    at_step = "" if step is None else f" at step {step}"
    cases = report.get("cases", [])
    rest = "" if cases else ", no open incident"
    yield f"at the head: {report.get('state', 'unknown')}{at_step}{rest}"
    yield from (f"  {case.get('severity', '')}: {case.get('text', '')}" for case in cases)


def format_clock_skew(node: Mapping[str, Any]) -> str:
    """Difference of a node's clock to the head's; empty if it is within the tolerance.

    >>> format_clock_skew({"skew_seconds": -3600.0}), format_clock_skew({"skew_seconds": 0.2})
    ('1 h ahead', '')
    """
    skew = float(node.get("skew_seconds", 0.0))
    if abs(skew) <= CLOCK_SKEW_TOLERANCE_SECONDS:
        return ""
    return f"{format_duration(abs(skew))} {'behind' if skew > 0 else 'ahead'}"


def _is_healthy(node: Mapping[str, Any]) -> bool:
    return node.get("state") in {"up", "ended"} and not format_clock_skew(node)


def _node_line(node: Mapping[str, Any]) -> str:
    ranks = node.get("ranks", [])
    rank_text = f"rank{'s' if len(ranks) > 1 else ''} {ranges_text(ranks)}" if ranks else "no ranks"
    parts = [rank_text, str(node.get("state", ""))]
    if node.get("state") == "lost":
        silent = format_duration(node.get("silent_seconds", 0.0))
        parts[-1] += f", no heartbeat for {silent}"
    if skew := format_clock_skew(node):
        parts.append(f"clock {skew}")
    return f"node {node.get('host', '')}: {', '.join(parts)}"
