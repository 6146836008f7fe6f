"""Nodes: whether the agents of a run on several nodes have found each other, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.doctor.check_result import Remark, mend, note, well
from sentinel.metrics.cluster_families import address_of, is_orphan, is_post
from sentinel.metrics.node_status import clock_of, listed, seconds, size

TELL = 'set [cluster] head = "host:port" (SENTINEL_CLUSTER__HEAD) alike on all nodes'
REACH = (
    "see that the agent of rank 0 is there (sentinel doctor on its node), and that the nodes may "
    f"talk over TCP ports 14000 to 17999; or {TELL}, and open that port"
)
REMEDIES = {
    "torch is not installed": "install torch where sentinel is installed: its agent runs there",
    "not sealed with our token": (
        "set the same [cluster] token (SENTINEL_CLUSTER__TOKEN, or _FILE) on all nodes; where "
        f"none is set, another job is in that place: {TELL}"
    ),
    "speaks protocol": "install one version of train-sentinel on all nodes",
    "Nobody told where": TELL,
    "belongs a port": TELL,
    "is free": f"{TELL}, with a port that is free there",
    "though its store does": "look at agent.log of the run on the head's node: it hangs, or ended",
    "is damaged": REACH,
    "Nobody answers": REACH,
    "No store at": REACH,
    "The store does not answer": REACH,
    "are not the head's": REACH,
    "not been looked for yet": "ask again in a few seconds",
    "is being opened": "ask again in a few seconds",
}
"""What to do, by what the link says of its trouble."""

LOOK = "look at agent.log in the folder of the run"

REASONS = {
    "version": REMEDIES["speaks protocol"],
    "token": REMEDIES["not sealed with our token"],
    "damaged": "if it goes on, somebody who is no agent of this job writes there: set a token",
    "repeated": "nothing: what is sent again after a break is taken once",
    "future": "set the clocks of all nodes alike (chrony, ntpd)",
    "too_large": "if it goes on, somebody who is no agent of this job writes there: set a token",
    "too_many": "if it goes on, somebody who is no agent of this job knocks there: set a token",
    "gap": "a node had to drop records while the head was away: see its disk, and the link",
}
"""What to do about messages that were refused, by reason."""

_KEPT_OUT = frozenset({"version", "token"})
"""Reasons for which a node of this very run may be kept out."""


def nodes(run: str, state: Mapping[str, Any]) -> Iterator[Remark]:
    """How the agents of a run's nodes stand, by what one of them says of itself."""
    cluster, about = state.get("cluster", {}), state.get("about", {})
    if cluster.get("role") == "head":
        yield from _head(run, state)
    elif is_post(cluster):
        yield _post(run, cluster)
    elif is_orphan(cluster, about):
        says = "the head was never reached, so these ranks are judged by themselves"
        yield mend(f"run {run}, nodes", says, f"{REACH}; it holds from the next start on")
    else:
        return
    yield from _refused(run, state, whole=_is_whole(state))


def remedy_of(trouble: str) -> str:
    """What to do about what a link or a hub says of its trouble."""
    return next((remedy for words, remedy in REMEDIES.items() if words in trouble), LOOK)


def _head(run: str, state: Mapping[str, Any]) -> Iterator[Remark]:
    cluster = state["cluster"]
    known, trouble = cluster.get("nodes", []), cluster.get("trouble", "")
    subject, at = f"run {run}, nodes", address_of(cluster)
    if not cluster.get("port"):
        yield mend(subject, f"other nodes cannot be heard: {trouble}", remedy_of(trouble))
    else:
        count = f"{len(known)} node{'s' if len(known) != 1 else ''}"
        yield well(subject, f"judges the run of {count}, and is reached at {at}")
    missing = sorted(_missing(state))
    if missing and state.get("active", True):
        says = f"nothing was heard of {len(missing)} ranks ({listed(missing)})"
        yield mend(subject, says, "run sentinel doctor on their nodes: it says why")
    for node in known:
        yield from _node(run, node)


def _node(run: str, node: Mapping[str, Any]) -> Iterator[Remark]:
    subject = f"run {run}, node {node.get('host', '')}"
    if node.get("state") == "lost":
        silent = seconds(node.get("silent_seconds", 0.0))
        says = f"not heard for {silent} (rank {listed(node.get('ranks', []))})"
        remedy = "see whether it answers; if it trains on, run sentinel doctor there"
        yield mend(subject, says, remedy)
    if clock := clock_of(node):
        says = f"its clock is {clock}: its times are told by the head's"
        yield note(subject, says, "set the clocks of all nodes alike (chrony, ntpd)")


def _post(run: str, cluster: Mapping[str, Any]) -> Remark:
    subject, head = f"run {run}, nodes", address_of(cluster)
    if cluster.get("linked"):
        return well(subject, f"its ranks are judged at {head}")
    trouble = str(cluster.get("trouble", ""))
    silent = seconds(cluster.get("silent_seconds", 0.0))
    waits = f"{size(cluster.get('spooled_bytes', 0))} of records wait"
    says = f"the head {f'at {head} ' if head else ''}is not reached for {silent}: {trouble} {waits}"
    return mend(subject, says, remedy_of(trouble))


def _refused(run: str, state: Mapping[str, Any], *, whole: bool) -> Iterator[Remark]:
    for reason, count in sorted(state.get("refused", {}).items()):
        grade = mend if reason in _KEPT_OUT and not whole else note
        says = f"{count:.0f} message{'s' if count != 1 else ''} of other agents refused: {reason}"
        yield grade(f"run {run}, nodes", says, REASONS.get(reason, LOOK))


def _is_whole(state: Mapping[str, Any]) -> bool:
    """Whether nobody is kept out, as far as this agent knows."""
    if state["cluster"].get("role") == "head":
        return not _missing(state)
    return bool(state["cluster"].get("linked"))


def _missing(state: Mapping[str, Any]) -> set[int]:
    ranks = int(state.get("about", {}).get("world_size", 0))
    nodes_known = state["cluster"].get("nodes", [])
    return set(range(ranks)) - {rank for node in nodes_known for rank in node.get("ranks", [])}
