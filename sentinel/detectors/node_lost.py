"""Lost node: a whole node no longer reports, although its ranks had not ended.

Formula
    Finding  = the head agent has received no message from a node's agent for too long; or, if the
               head's node is the one that is lost, another agent has received none from the head
    warning  = the ranks of the other nodes still take steps: only the agent or its network
               connection is lost, since training does not continue without ranks
    An incident of ranks that waited for a lost node ends with their next step, not with its report.

Units
    `nodes_lost`: nodes of the current attempt. Silence: seconds. Other ranks count as running if
    they took a step later than 5 seconds after the last message of the node.

Source
    If a node loses its power, its kernel or its network, all of its ranks are lost at once and none
    of them reports it. This is one finding, not one per rank.

    If ranks use collectives, those of the other nodes fail as soon as a node is lost, each with its
    own error. The first of these errors is part of this finding, unless the others had continued
    without the node, or the node reported after the first of them failed. A rank that a signal
    killed needs no lost node to explain it: if the head is lost, that rank is named first.

Defaults
    No settings. The agents' connection decides how long a silence is too long: about twelve
    seconds. A node that finished, or that a new attempt starts without, is not lost; nor is a node
    that stops reporting after a rank of another node ended the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from sentinel.detectors._rank_ends import CRASHES, death_text, ranks_in
from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Scope, Severity
from sentinel.model.number_ranges import format_ranges
from sentinel.model.record import Record

MAX_LISTED = 4
"""Maximum number of hosts and of rank ranges in a summary."""

SAME_FAILURE_SECONDS = 5.0
"""Seconds after the failure of a rank in which others may complete a step."""

KILLED_REMEDY = (
    "Look for what killed the rank (`dmesg` and `memory.events` of the cgroup on its node, the "
    "scheduler's log), and check whether the node of the head agent is up. Resume from the last "
    "checkpoint."
)


@dataclass
class NodeLost:
    """Evaluates `nodes_lost`."""

    needs = frozenset({"nodes_lost"})
    signal = "nodes_lost"
    severity = Severity.CRITICAL
    scope = Scope.PROCESS
    remedy = (
        "Check whether the node is up (ping, console, scheduler's log). If it is down, drain it "
        "and resume from the last checkpoint with another node. If training continues, check the "
        "agent on that node (`sentinel status`, `agent.log`), the network and the firewall."
    )

    def __post_init__(self) -> None:
        self._blocked_time = -inf

    def update(self, record: Record) -> DetectorOutput:
        lost = record.values["nodes_lost"]
        if not lost >= 1.0:
            seconds_back = record.time - self._blocked_time
            is_standing = 0.0 <= seconds_back < record.values.get("idle_seconds", 0.0)
            return None if is_standing and _has_running_ranks(record) else CLEAR
        if _is_run_over(record):
            return None
        killed = _killed_rank(record)
        # Suspended ranks on another node stand still too.
        blocked = bool(record.attributes.get("blocked_by"))
        if blocked:
            self._blocked_time = record.time
        continues = _has_running_ranks(record) and not blocked and killed is None
        silent = record.values.get("lost_seconds", 0.0)
        head = record.attributes.get("head_lost", "")
        ranks = format_ranges(
            map(int, filter(None, record.attributes.get("lost_ranks", "").split(",")))
        )
        evidence: dict[str, float | str] = {
            "nodes_lost": lost,
            "seconds_since_last_message": silent,
            "hosts": head or record.attributes.get("lost_nodes", ""),
            "ranks": ",".join(ranks),
            "training": _training_state(record, continues=continues),
        }
        if failure := _first_failure_text(record):
            evidence["first_failed_rank"] = failure
        return Finding(
            summary=f"{_subject_text(record, head, ranks)} not reported for {silent:.0f} s"
            f"{_consequence_text(record, head, continues=continues)}.",
            evidence=evidence,
            severity=Severity.WARNING if continues else None,
            rank=killed,
            remedy=None if killed is None else KILLED_REMEDY,
        )


def _training_state(record: Record, *, continues: bool) -> str:
    if continues:
        return "running"
    return "stopped" if _has_running_ranks(record) else "ended"


def _subject_text(record: Record, head: str, ranks: Sequence[str]) -> str:
    """The subject of the summary and its auxiliary verb."""
    killed = _killed_rank(record)
    if killed is not None:
        how = death_text(record.attributes)
        return f"Rank {killed} was {how}, and the head agent on {head} has"
    if head:
        return f"The head agent on {head} has"
    hosts = list(filter(None, record.attributes.get("lost_nodes", "").split(",")))
    is_single = len(hosts) == 1
    has_many_ranks = any("-" in span for span in ranks) or len(ranks) > 1
    names = f" ({'ranks' if has_many_ranks else 'rank'} {_join_names(ranks)})" if ranks else ""
    if is_single:
        return f"Node {_join_names(hosts)}{names} has"
    return f"Nodes {_join_names(hosts)}{names} have"


def _consequence_text(record: Record, head: str, *, continues: bool) -> str:
    """The end of the summary: the consequence for the run."""
    failure = _first_failure_text(record)
    reason = f": {failure}" if failure else ""
    stopped = f"no rank has passed step {record.step} since{reason}"
    if _killed_rank(record) is not None:
        return "; the run is not monitored"
    if head:
        training = "while training continues" if continues else f"and {stopped}"
        return f"; the run is not monitored, {training}"
    if continues:
        return "; the other ranks continue, so only its agent or its network connection is lost"
    ended = f"no other rank is running{reason}"
    return f"; {stopped if _has_running_ranks(record) else ended}"


def _first_failure_text(record: Record) -> str:
    """The first rank of another node that failed because of the lost node; "" if there is none."""
    attributes = record.attributes
    if attributes.get("failure_origin") != "node_lost":
        return ""
    cause = attributes.get("cause", "")
    failed = attributes.get("died_ranks" if cause == "died" else "failed_ranks", "")
    rank = (attributes.get("culprit_ranks") or failed).split(",")[0]
    # An interrupted rank is not named, though others may have failed since.
    texts = {
        "died": "was killed",
        "exception": f"raised {attributes.get('exception', 'an exception')}",
        "exit": f"exited with code {attributes.get('code', 'non-zero')}",
    }
    return f"rank {rank} {texts[cause]}" if rank and cause in texts else ""


def _killed_rank(record: Record) -> int | None:
    """The rank that a signal killed while the head is lost; a crash may follow from the loss."""
    attributes = record.attributes
    if not attributes.get("head_lost") or attributes.get("cause") != "died":
        return None
    ranks = ranks_in(attributes, "culprit_ranks") or ranks_in(attributes, "died_ranks")
    is_killed = attributes.get("signal", "SIGABRT") not in CRASHES
    return ranks[0] if ranks and is_killed else None


def _is_run_over(record: Record) -> bool:
    """Whether a rank failed for another reason, and no rank has taken a step since."""
    if (
        "failed_seconds_ago" not in record.attributes
        or record.attributes.get("failure_origin") == "node_lost"
    ):
        return False
    return record.values.get("idle_seconds", 0.0) + SAME_FAILURE_SECONDS >= float(
        record.attributes["failed_seconds_ago"]
    )


def _has_running_ranks(record: Record) -> bool:
    """Whether any other rank runs; a follower that reports a lost head does not count them."""
    return record.values.get("ranks_running", 1.0) > 0.0


def _join_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others.

    >>> _join_names(["a", "b"]), _join_names(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
