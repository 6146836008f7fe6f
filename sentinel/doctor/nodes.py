"""Nodes: whether the agents of a run on several nodes have found each other, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.metrics.cluster_families import head_address, is_follower, is_isolated
from sentinel.metrics.node_status import (
    format_bytes,
    format_clock_skew,
    format_duration,
    format_ranks,
)

SET_HEAD_REMEDY = 'set [cluster] head = "host:port" (SENTINEL_CLUSTER__HEAD) alike on all nodes'
REACH_HEAD_REMEDY = (
    "see that the agent of rank 0 is there (sentinel doctor on its node), and that the nodes may "
    f"talk over TCP ports 14000 to 17999; or {SET_HEAD_REMEDY}, and open that port"
)
TROUBLE_REMEDIES = {
    "torch is not installed": "install torch where sentinel is installed: its agent runs there",
    "not sealed with our token": (
        "set the same [cluster] token (SENTINEL_CLUSTER__TOKEN, or _FILE) on all nodes; where "
        f"none is set, another job is in that place: {SET_HEAD_REMEDY}"
    ),
    "speaks protocol": "install one version of train-sentinel on all nodes",
    "Nobody told where": SET_HEAD_REMEDY,
    "belongs a port": SET_HEAD_REMEDY,
    "is free": f"{SET_HEAD_REMEDY}, with a port that is free there",
    "though its store does": "look at agent.log of the run on the head's node: it hangs, or ended",
    "is damaged": REACH_HEAD_REMEDY,
    "Nobody answers": REACH_HEAD_REMEDY,
    "No store at": REACH_HEAD_REMEDY,
    "The store does not answer": REACH_HEAD_REMEDY,
    "are not the head's": REACH_HEAD_REMEDY,
    "not been looked for yet": "ask again in a few seconds",
    "is being opened": "ask again in a few seconds",
}
"""What to do, by what the link says of its trouble."""

READ_LOG_REMEDY = "look at agent.log in the folder of the run"

REFUSAL_REMEDIES = {
    "version": TROUBLE_REMEDIES["speaks protocol"],
    "token": TROUBLE_REMEDIES["not sealed with our token"],
    "damaged": "if it goes on, somebody who is no agent of this job writes there: set a token",
    "repeated": "nothing: what is sent again after a break is taken once",
    "future": "set the clocks of all nodes alike (chrony, ntpd)",
    "too_large": "if it goes on, somebody who is no agent of this job writes there: set a token",
    "too_many": "if it goes on, somebody who is no agent of this job knocks there: set a token",
    "gap": "a node had to drop records while the head was away: see its disk, and the link",
}
"""What to do about messages that were refused, by reason."""

_EXCLUDING_REASONS = frozenset({"version", "token"})
"""Reasons for which a node of this very run may be kept out."""


def check_nodes(run: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    """How the agents of a run's nodes stand, by what one of them says of itself."""
    cluster, about = state.get("cluster", {}), state.get("metadata", {})
    if cluster.get("role") == "head":
        yield from _check_head(run, state)
    elif is_follower(cluster):
        yield _check_follower(run, cluster)
    elif is_isolated(cluster, about):
        says = "the head was never reached, so these ranks are judged by themselves"
        yield fail(
            f"run {run}, nodes", says, f"{REACH_HEAD_REMEDY}; it holds from the next start on"
        )
    else:
        return
    yield from _check_refusals(run, state, complete=_is_complete(state))


def remedy_for(trouble: str) -> str:
    """What to do about what a link or a hub says of its trouble."""
    return next(
        (remedy for words, remedy in TROUBLE_REMEDIES.items() if words in trouble), READ_LOG_REMEDY
    )


def _check_head(run: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    cluster = state["cluster"]
    known, trouble = cluster.get("nodes", []), cluster.get("error", "")
    subject, at = f"run {run}, nodes", head_address(cluster)
    if not cluster.get("port"):
        yield fail(subject, f"other nodes cannot be heard: {trouble}", remedy_for(trouble))
    else:
        count = f"{len(known)} node{'s' if len(known) != 1 else ''}"
        yield ok(subject, f"judges the run of {count}, and is reached at {at}")
    missing = sorted(_missing_ranks(state))
    if missing and state.get("active", True):
        says = f"nothing was heard of {len(missing)} ranks ({format_ranks(missing)})"
        yield fail(subject, says, "run sentinel doctor on their nodes: it says why")
    for node in known:
        yield from _check_node(run, node)


def _check_node(run: str, node: Mapping[str, Any]) -> Iterator[CheckResult]:
    subject = f"run {run}, node {node.get('host', '')}"
    if node.get("state") == "lost":
        silent = format_duration(node.get("silent_seconds", 0.0))
        says = f"not heard for {silent} (rank {format_ranks(node.get('ranks', []))})"
        remedy = "see whether it answers; if it trains on, run sentinel doctor there"
        yield fail(subject, says, remedy)
    if clock := format_clock_skew(node):
        says = f"its clock is {clock}: its times are told by the head's"
        yield warn(subject, says, "set the clocks of all nodes alike (chrony, ntpd)")


def _check_follower(run: str, cluster: Mapping[str, Any]) -> CheckResult:
    subject, head = f"run {run}, nodes", head_address(cluster)
    if cluster.get("connected"):
        return ok(subject, f"its ranks are judged at {head}")
    trouble = str(cluster.get("error", ""))
    silent = format_duration(cluster.get("silent_seconds", 0.0))
    waits = f"{format_bytes(cluster.get('spooled_bytes', 0))} of records wait"
    says = f"the head {f'at {head} ' if head else ''}is not reached for {silent}: {trouble} {waits}"
    return fail(subject, says, remedy_for(trouble))


def _check_refusals(run: str, state: Mapping[str, Any], *, complete: bool) -> Iterator[CheckResult]:
    for reason, count in sorted(state.get("refused", {}).items()):
        grade = fail if reason in _EXCLUDING_REASONS and not complete else warn
        says = f"{count:.0f} message{'s' if count != 1 else ''} of other agents refused: {reason}"
        yield grade(f"run {run}, nodes", says, REFUSAL_REMEDIES.get(reason, READ_LOG_REMEDY))


def _is_complete(state: Mapping[str, Any]) -> bool:
    """Whether nobody is kept out, as far as this agent knows."""
    if state["cluster"].get("role") == "head":
        return not _missing_ranks(state)
    return bool(state["cluster"].get("connected"))


def _missing_ranks(state: Mapping[str, Any]) -> set[int]:
    ranks = int(state.get("metadata", {}).get("world_size", 0))
    nodes_known = state["cluster"].get("nodes", [])
    return set(range(ranks)) - {rank for node in nodes_known for rank in node.get("ranks", [])}
