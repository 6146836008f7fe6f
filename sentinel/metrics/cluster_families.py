"""Cluster families: what part an agent has among those of its job, for Prometheus.

A run on one node has none of them. Where there are more, the run is shown by its head alone: what
is said of a run as a whole is left out on the other nodes, so that each run is there once, and a
node that only hands over its ranks' records is not taken for a run that never made a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel.metrics.label import sanitize_label
from sentinel.model.finding import Severity

NODE_STATES = ("up", "lost")
"""Of those that `sentinel_nodes` counts; one whose ranks have all ended is neither."""

REFUSED_MESSAGES_METRIC = "sentinel_head_connection_rejected_total"

_DETECTORS_ON_FOLLOWERS = frozenset({"node_lost"})
"""Detectors that a post runs too: that of the head itself, which nobody else could miss."""

_RUN_LEVEL_METRICS = frozenset(
    {
        "sentinel_run",
        "sentinel_run_active",
        "sentinel_run_setting",
        "sentinel_run_state",
        "sentinel_steps",
        "sentinel_checkpoints",
        "sentinel_logged_values_hidden",
    }
)


def is_follower(cluster: Mapping[str, Any]) -> bool:
    """Whether what its ranks do is judged by the agent of another node."""
    return bool(cluster.get("role") == "follower")


def is_isolated(cluster: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether it judges some ranks of a run alone, since it reached no head.

    `settings` are what the run says of itself; the ranks there are, and those of one node.

    >>> is_orphan({"role": "single"}, {"world_size": 16.0, "local_world_size": 8.0})
    True
    """
    ranks, here = settings.get("world_size", 1.0), settings.get("local_world_size", 0.0)
    return cluster.get("role") == "single" and 0 < here < ranks


def detectors_run_here(
    detectors: Mapping[str, Severity], cluster: Mapping[str, Any]
) -> Mapping[str, Severity]:
    """Those of the detectors whose calm this agent can vouch for."""
    if not is_follower(cluster):
        return detectors
    return {name: loud for name, loud in detectors.items() if name in _DETECTORS_ON_FOLLOWERS}


def families_exported_here(
    families: Iterable[Metric], cluster: Mapping[str, Any]
) -> Iterator[Metric]:
    """Those of the families that are this agent's to tell."""
    of_others = _RUN_LEVEL_METRICS if is_follower(cluster) else frozenset()
    return (family for family in families if family.name not in of_others)


def cluster_families(
    cluster: Mapping[str, Any], run: str, *, active: bool = True, isolated: bool = False
) -> Iterator[Metric]:
    """The part of this agent, as `Nodes.state` tells it; none where it is on its own.

    `active` is whether its ranks are, or should be, training.
    """
    role, run = cluster.get("role"), sanitize_label(run)
    if role in ("head", "follower") or isolated:
        yield _role_family(cluster, run)
    if role == "head":
        yield _node_count_family(cluster, run)
    if role == "follower" or isolated:
        linked = "1 while the agent that judges the run answers this node's."
        yield _gauge("sentinel_head_connection_up", linked, run, bool(cluster.get("connected")))
    if role == "follower":
        waits = "Size of the records that wait for the agent that judges the run."
        yield _gauge("sentinel_head_connection_spooled_bytes", waits, run, cluster.get("spooled_bytes", 0))
        trains = "1 while ranks of this node, judged elsewhere, are, or should be, training."
        yield _gauge("sentinel_node_active", trains, run, active)


def head_address(cluster: Mapping[str, Any]) -> str:
    """Where the run is judged, as far as that is known: host:port, the same on all its nodes.

    >>> address_of({"role": "follower", "head": "gpu-a:14007"}), address_of({"role": "single"})
    ('gpu-a:14007', '')
    """
    listens = cluster.get("role") != "head" or cluster.get("port")
    return str(cluster.get("head", "")) if listens else ""


def refused_messages_by_reason(counts: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """How many messages of other agents were refused, by reason."""
    return {
        reason: n
        for (family, reason), n in sorted(counts.items())
        if family == REFUSED_MESSAGES_METRIC
    }


def _role_family(cluster: Mapping[str, Any], run: str) -> Metric:
    family = InfoMetricFamily(
        "sentinel_cluster_role",
        "Whether this agent judges the run (head), hands its node's records over (follower), or judges "
        "its node alone since it reached no head (single); and where the head is.",
        labels=("run",),
    )
    told = {"role": str(cluster["role"]), "head": sanitize_label(head_address(cluster))}
    family.add_metric((run,), told)
    return family


def _node_count_family(cluster: Mapping[str, Any], run: str) -> Metric:
    family = GaugeMetricFamily(
        "sentinel_nodes", "Nodes of the run by how they are.", labels=("run", "state")
    )
    states = [node.get("state") for node in cluster.get("nodes", ())]
    for state in NODE_STATES:
        family.add_metric((run, state), states.count(state))
    return family


def _gauge(name: str, help_: str, run: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=("run",))
    family.add_metric((run,), value)
    return family
