"""Nodes of a run: whether its agents reach each other, why not, and their lines in the status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.doctor.check_result import CheckResult, Grade, fail, ok, warn
from sentinel.metrics.cluster_status import head_address, is_follower, is_isolated
from sentinel.model.number_ranges import ranges_text
from sentinel.model.quantity_text import format_bytes, format_duration
from sentinel.store.unmonitored import missing_ranks

SET_HEAD_REMEDY = 'set the same [cluster] head = "host:port" (SENTINEL_CLUSTER__HEAD) on all nodes'
REACH_HEAD_REMEDY = (
    "check that the agent of rank 0 runs (sentinel doctor on its node) and that TCP ports 14000 to "
    f"17999 are open between the nodes; or {SET_HEAD_REMEDY}, and open that port. The head listens "
    "only at the interface that it looks up for its own name, without [cluster] all_interfaces"
)
TROUBLE_REMEDIES = {
    "torch is not installed": "install torch in the Python environment of the agent",
    "signed with another token": (
        "set the same [cluster] token (SENTINEL_CLUSTER__TOKEN, or _FILE) on all nodes; if none "
        f"is set, another job uses that port: {SET_HEAD_REMEDY}"
    ),
    "uses protocol": "install the same version of train-sentinel on all nodes",
    "address of rank 0 is unknown": SET_HEAD_REMEDY,
    "the port must be a number": SET_HEAD_REMEDY,
    "is free": f"{SET_HEAD_REMEDY}, with a port that is free there",
    "though its store does": "see agent.log on the head node: its agent hangs or has ended",
    "is damaged": REACH_HEAD_REMEDY,
    "No answer at": REACH_HEAD_REMEDY,
    "No store at": REACH_HEAD_REMEDY,
    "The store does not answer": REACH_HEAD_REMEDY,
    "do not belong to the head": REACH_HEAD_REMEDY,
    "not been searched for yet": "ask again in a few seconds",
    "is being opened": "ask again in a few seconds",
}
"""Remedy by a part of the error message of the cluster client or server."""

READ_LOG_REMEDY = "see agent.log in the state directory of the run"

FOREIGN_WRITER_REMEDY = (
    "if it continues, a process outside of this job writes there: close the port to it"
)
OPEN_HEAD_REMEDY = "set the same [cluster] token (SENTINEL_CLUSTER__TOKEN, or _FILE) on all nodes"
SYNC_CLOCKS_REMEDY = "synchronise the clocks of all nodes (chrony, ntpd)"

REFUSAL_REMEDIES = {
    "version": TROUBLE_REMEDIES["uses protocol"],
    "token": TROUBLE_REMEDIES["signed with another token"],
    "damaged": FOREIGN_WRITER_REMEDY,
    "repeated": "none: a message that is sent again after an interruption is processed once",
    "future": SYNC_CLOCKS_REMEDY,
    "too_large": FOREIGN_WRITER_REMEDY,
    "too_many": FOREIGN_WRITER_REMEDY,
    "foreign_key": FOREIGN_WRITER_REMEDY,
    "foreign_connection": "if it continues, close the port to other machines or users",
    "flood": "close the port of the head to other machines and users",
    "gap": "a node dropped records while the head was unreachable: check its disk and the network",
}
"""Remedy for rejected messages by reason."""

_COUNTED_THINGS = {"foreign_key": "key", "foreign_connection": "connection", "flood": "flood"}
"""What is counted by reason, where that is no message."""

_EXCLUDING_REASONS = frozenset({"version", "token"})
"""Reasons that may exclude a node of this run."""
CLOCK_SKEW_TOLERANCE_SECONDS = 5.0
"""Smaller differences between clocks are not reported."""
MAX_HEALTHY_NODES_LISTED = 8
"""Number of nodes up to which the healthy ones are listed too."""


def check_nodes(run: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Results for the agents of a run, from the state that one of them exports."""
    cluster, metadata = state.get("cluster", {}), state.get("metadata", {})
    if cluster.get("role") == "head":
        yield from _check_head(run, state)
    elif is_follower(cluster):
        yield _check_follower(run, cluster)
    elif is_isolated(cluster, metadata):
        message = "the head was never reached; this agent monitors its own ranks only"
        remedy = f"{REACH_HEAD_REMEDY}; takes effect at the next start"
        yield fail(f"run {run}, nodes", message, remedy)
    else:
        return
    yield from _check_refusals(run, state, complete=_is_complete(state))


def problem_lines(run: str, state: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong between the nodes, with the remedy, for `sentinel status`.

    The line of each node is left out.
    """
    for result in check_nodes(run, state):
        if result.grade is not Grade.OK and result.subject == f"run {run}, nodes":
            yield f"{result.message}: {result.remedy}"


def remedy_for(error: str) -> str:
    """Remedy for an error message of the cluster client or server."""
    return next(
        (remedy for part, remedy in TROUBLE_REMEDIES.items() if part in error), READ_LOG_REMEDY
    )


def _check_head(run: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    cluster = state["cluster"]
    nodes, error = cluster.get("nodes", []), cluster.get("error", "")
    subject = f"run {run}, nodes"
    if not cluster.get("port"):
        yield fail(subject, f"other nodes cannot connect: {error}", remedy_for(error))
    else:
        count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        yield ok(subject, f"head of {count}, listening at {head_address(cluster)}")
        if not cluster.get("has_token", True):
            yield _missing_token(run, str(cluster.get("listen_address", "")))
    missing = missing_ranks(state)
    if missing and state.get("active", True):
        message = f"no data from {len(missing)} ranks ({ranges_text(missing)})"
        yield fail(subject, message, "run sentinel doctor on their nodes to see why")
    if late := state.get("late_records"):
        message = f"{late:.0f} records arrived too late: their steps are evaluated without them"
        yield warn(subject, message, "check the network between the nodes")
    for node in nodes:
        yield from _check_node(run, node)


def _missing_token(run: str, listen_address: str) -> CheckResult:
    interface = f"the interface {listen_address}" if listen_address else "all interfaces"
    message = (
        f"the head listens on {interface} without a token: who reaches its port and knows the job "
        "id can send records"
    )
    return warn(f"run {run}, token", message, OPEN_HEAD_REMEDY)


def _check_node(run: str, node: Mapping[str, Any]) -> Iterator[CheckResult]:
    subject = f"run {run}, node {node.get('host', '')}"
    if node.get("state") == "lost":
        silent = format_duration(node.get("silent_seconds", 0.0))
        message = f"no message for {silent} (ranks {ranges_text(node.get('ranks', []))})"
        remedy = "check whether the node is up; if it still trains, run sentinel doctor there"
        yield fail(subject, message, remedy)
    if clock := format_clock_skew(node):
        message = f"clock is {clock}; timestamps are corrected to the head's clock"
        yield warn(subject, message, SYNC_CLOCKS_REMEDY)


def _check_follower(run: str, cluster: Mapping[str, Any]) -> CheckResult:
    subject, head = f"run {run}, nodes", head_address(cluster)
    if cluster.get("connected"):
        return ok(subject, f"follower of the head at {head}")
    error = str(cluster.get("error", ""))
    silent = format_duration(cluster.get("silent_seconds", 0.0))
    buffered = f"{format_bytes(cluster.get('spooled_bytes', 0), digits=2)} of records are buffered"
    location = f" at {head}" if head else ""
    message = f"the head{location} has been unreachable for {silent}: {error} {buffered}"
    return fail(subject, message, remedy_for(error))


def _check_refusals(run: str, state: Mapping[str, Any], *, complete: bool) -> Iterator[CheckResult]:
    for reason, count in sorted(state.get("refused", {}).items()):
        grade = fail if reason in _EXCLUDING_REASONS and not complete else warn
        what = _COUNTED_THINGS.get(reason, "message")
        message = f"{count:.0f} {what}{'s' if count != 1 else ''} rejected: {reason}"
        yield grade(f"run {run}, nodes", message, REFUSAL_REMEDIES.get(reason, READ_LOG_REMEDY))


def _is_complete(state: Mapping[str, Any]) -> bool:
    """Whether no node is excluded, as far as this agent knows."""
    if state["cluster"].get("role") == "head":
        return not missing_ranks(state)
    return bool(state["cluster"].get("connected"))


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
