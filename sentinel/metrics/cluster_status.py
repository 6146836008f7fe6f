"""What the status of an agent among those of its job means: see `AgentRole.status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATE_RECORDS = "sentinel_dropped_records_total", "late"
REJECTED_MESSAGES_METRIC = "sentinel_head_connection_rejected_total"


def is_follower(cluster: Mapping[str, Any]) -> bool:
    """Whether the head on another node processes the records of this node's ranks."""
    return bool(cluster.get("role") == "follower")


def is_isolated(cluster: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether this agent processes only part of a run's ranks because it reached no head.

    `settings` are the run's: `world_size` ranks in all, `local_world_size` on this node.

    >>> is_isolated({"role": "single"}, {"world_size": 16.0, "local_world_size": 8.0})
    True
    """
    all_ranks, local_ranks = settings.get("world_size", 1.0), settings.get("local_world_size", 0.0)
    return cluster.get("role") == "single" and 0 < local_ranks < all_ranks


def head_address(cluster: Mapping[str, Any]) -> str:
    """Address of the head as host:port, the same on all nodes; empty where it is not known.

    >>> head_address({"role": "follower", "head": "gpu-a:14007"}), head_address({"role": "single"})
    ('gpu-a:14007', '')
    """
    is_listening = cluster.get("role") != "head" or cluster.get("port")
    return str(cluster.get("head", "")) if is_listening else ""


def rejected_messages_by_reason(counts: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Number of rejected messages of other agents, by reason."""
    return {
        reason: n
        for (family, reason), n in sorted(counts.items())
        if family == REJECTED_MESSAGES_METRIC
    }
