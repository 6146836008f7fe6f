"""Prometheus families for the role of this agent in a run on several nodes.

A run on one node has none of them. On several nodes only the head exports the metrics of the run
as a whole, so that each run has them once, and a follower, which processes no steps itself, does
not look like a run that never made a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentinel.metrics.cluster_status import head_address, is_follower
from sentinel.metrics.family import Family, FamilyBuilder
from sentinel.metrics.label import sanitize_label
from sentinel.model.finding import Severity

NODE_STATES = ("up", "lost")
"""States that `sentinel_nodes` counts; a node whose ranks have all ended is in neither."""

_DETECTORS_ON_FOLLOWERS = frozenset({"node_lost"})
"""Detectors that also run on followers: they detect the loss of the head itself."""

_RUN_LEVEL_METRICS = frozenset(
    {
        "sentinel_attempt_start_timestamp_seconds",
        "sentinel_run",
        "sentinel_run_active",
        "sentinel_run_setting",
        "sentinel_run_state",
        "sentinel_steps",
        "sentinel_checkpoints",
        "sentinel_logged_values_hidden",
    }
)


def detectors_run_here(
    detectors: Mapping[str, Severity], cluster: Mapping[str, Any]
) -> Mapping[str, Severity]:
    """The detectors that this agent runs, with their severities."""
    if not is_follower(cluster):
        return detectors
    return {
        name: severity for name, severity in detectors.items() if name in _DETECTORS_ON_FOLLOWERS
    }


def families_exported_here(
    families: Iterable[Family], cluster: Mapping[str, Any]
) -> Iterator[Family]:
    """The families that this agent exports: on a follower, without those of the whole run."""
    excluded = _RUN_LEVEL_METRICS if is_follower(cluster) else frozenset()
    return (family for family in families if family.name not in excluded)


def cluster_families(
    cluster: Mapping[str, Any], run: str, *, active: bool = True, isolated: bool = False
) -> Iterator[Family]:
    """Families for `cluster`, as `AgentRole.status` returns it; none for a run on one node.

    `active` is whether this node's ranks are, or should be, training.
    """
    role, build = cluster.get("role"), FamilyBuilder(sanitize_label(run))
    if role in ("head", "follower") or isolated:
        yield _role_family(build, cluster)
    if role == "head":
        states = [node.get("state") for node in cluster.get("nodes", ())]
        counts = {state: states.count(state) for state in NODE_STATES}
        yield build.gauge("sentinel_nodes", "Nodes of the run, by state.", counts, "state")
    if role == "follower" or isolated:
        is_connected = bool(cluster.get("connected"))
        yield build.gauge(
            "sentinel_head_connection_up", "1 while the head agent answers this node.", is_connected
        )
    if role == "follower":
        yield build.gauge(
            "sentinel_head_connection_spooled_bytes",
            "Size of the records that wait to be sent to the head agent.",
            cluster.get("spooled_bytes", 0),
        )
        yield build.gauge(
            "sentinel_node_active",
            "1 while ranks of this follower node are, or should be, training.",
            active,
        )


def _role_family(build: FamilyBuilder, cluster: Mapping[str, Any]) -> Family:
    return build.info(
        "sentinel_cluster_role",
        "Role of this agent: it processes the run (head), sends its node's records to the head "
        "(follower), or processes its node only because it reached no head (single); and the "
        "head's address.",
        [(str(cluster["role"]), sanitize_label(head_address(cluster)))],
        "role",
        "head",
    )
