"""Node lost: nothing is heard of a whole node, though its ranks had not ended.

Formula
    Finding  = the agent that judges the run has heard nothing of a node's agent for too long, or,
               where that is the one not heard, another agent has heard nothing of it
    warning  = the ranks of the other nodes go on taking steps: only the agent is lost, or the way
               to it, for training does not go on without its ranks

Units
    `nodes_lost`: nodes of the current attempt. The silence is in seconds. Other ranks go on if they
    still took a step later than 5 seconds after the last word of the node.

Source
    A node that loses its power, its kernel or its network takes all of its ranks with it, and none
    can say so; what is seen is one silence, not the deaths of so many ranks.

    Where ranks meet in collectives, those of the other nodes fail at once when a node dies, each
    with an error of its own. That is no second matter: it is told of here, with the first of these
    errors, unless the others had gone on without the node, or it was heard after the first fell.

Defaults
    None to choose. How long a silence is too long the agents' link knows: about twelve seconds. A
    node that finished, or that a new attempt begins without, is not lost; one that falls silent
    after a rank of another ended the run is no news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.number_ranges import format_ranges

MAX_LISTED = 4
"""Hosts, and stretches of ranks, that are named one by one."""

SAME_FAILURE_SECONDS = 5.0
"""Seconds after a rank fell in which others may still take a step that they had begun."""


@dataclass
class NodeLost:
    needs: ClassVar[frozenset[str]] = frozenset({"nodes_lost"})
    signal: ClassVar[str] = "nodes_lost"
    severity: ClassVar[Severity] = Severity.CRITICAL
    remedy: ClassVar[str] = (
        "See whether the node answers (ping, its console, the scheduler's log). If it is down, "
        "drain it and resume from the last checkpoint with another in its place; if training goes "
        "on, look on the node for its agent (sentinel status, agent.log), and at the network and "
        "the firewall between the two."
    )

    def update(self, record: Record) -> DetectorOutput:
        lost = record.values["nodes_lost"]
        if not lost >= 1.0:
            return Clear()
        if _is_run_over(record):
            return None
        goes_on = _has_running_ranks(record) and record.attributes.get("blocked_by") != "node_lost"
        silent = record.values.get("lost_seconds", 0.0)
        head = record.attributes.get("head_lost", "")
        ranks = format_ranges(
            map(int, filter(None, record.attributes.get("lost_ranks", "").split(",")))
        )
        told = f"{_subject_text(record, head, ranks)} not been heard for {silent:.0f} s"
        return Finding(
            summary=f"{told}{_consequence_text(record, head, goes_on=goes_on)}.",
            evidence={
                "nodes_lost": lost,
                "silent_seconds": silent,
                "hosts": head or record.attributes.get("lost_nodes", ""),
                "ranks": ",".join(ranks),
                "training": "goes on"
                if goes_on
                else "stands"
                if _has_running_ranks(record)
                else "ended",
                **({"first_to_fall": fell} if (fell := _first_failed_rank_text(record)) else {}),
            },
            severity=Severity.WARNING if goes_on else None,
        )


def _subject_text(record: Record, head: str, ranks: Sequence[str]) -> str:
    """The start of the sentence: who is silent."""
    if head:
        return f"The agent on {head}, which judges the run, has"
    hosts = list(filter(None, record.attributes.get("lost_nodes", "").split(",")))
    one = len(hosts) == 1
    many = any("-" in span for span in ranks) or len(ranks) > 1
    who = f" ({'ranks' if many else 'rank'} {_join_names(ranks)})" if ranks else ""
    return f"Node{'s' * (not one)} {_join_names(hosts)}{who} {'has' if one else 'have'}"


def _consequence_text(record: Record, head: str, *, goes_on: bool) -> str:
    """The end of the sentence: what follows for the run."""
    fell = f": {_first_failed_rank_text(record)}" if _first_failed_rank_text(record) else ""
    stands = f"no rank has moved past step {record.step} since{fell}"
    if head:
        return ": nobody judges it" + (", while training goes on" if goes_on else f", and {stands}")
    if goes_on:
        return ", while the other ranks go on: its agent is lost, or the way to it, not its ranks"
    ended = f"none of the other ranks runs any more{fell}"
    return f", and {stands if _has_running_ranks(record) else ended}"


def _first_failed_rank_text(record: Record) -> str:
    """What became of the first rank of another node that fell for want of this one, if any did."""
    facts = record.attributes
    if facts.get("failure_origin") != "node_lost":
        return ""
    cause = facts.get("cause", "")
    rank = facts.get("died_ranks" if cause == "died" else "failed_ranks", "").split(",")[0]
    # Of one that was interrupted no rank is named, though others may have failed since.
    hows = {
        "died": "was killed",
        "exception": f"raised {facts.get('exception', 'an exception')}",
        "exit": f"left with exit code {facts.get('code', 'non-zero')}",
    }
    return f"rank {rank} {hows[cause]}" if rank and cause in hows else ""


def _is_run_over(record: Record) -> bool:
    """Whether a rank fell, and not for want of these nodes, and none has taken a step since."""
    if (
        "failed_seconds_ago" not in record.attributes
        or record.attributes.get("failure_origin") == "node_lost"
    ):
        return False
    return record.values.get("idle_seconds", 0.0) + SAME_FAILURE_SECONDS >= float(
        record.attributes["failed_seconds_ago"]
    )


def _has_running_ranks(record: Record) -> bool:
    """Whether any other rank is there; who judges nothing else does not count them."""
    return record.values.get("ranks_running", 1.0) > 0.0


def _join_names(names: Sequence[str]) -> str:
    """Names in a row, the first few of many.

    >>> _listed(["a", "b"]), _listed(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
