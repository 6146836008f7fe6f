"""Merges the heartbeats of all nodes into one heartbeat of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sentinel.live.liveness import FAILURE_ATTRIBUTES, ended_state, failure_attributes
from sentinel.model.rank_end import (
    CLOCK_ERROR_SECONDS,
    END_ATTRIBUTES,
    STOP_SIGNAL_KEY,
    RankEnd,
    first_failure,
)
from sentinel.model.rank_stack import group_stacks, parse_stacks, serialize_stacks
from sentinel.model.record import WHOLE_RUN, Event, Record

BLOCKED_AFTER_SILENCE_SECONDS = 5.0
"""Ranks whose last step is at most this long after the last heartbeat of a node wait for that
node."""

RESTART_TRUST_SECONDS = 5.0
"""How long a silent node's announcement is trusted that its ranks may restart."""

HEARTBEAT_DELAY_SECONDS = 1.0
"""A heartbeat that arrives this long after a failure was sent after it."""

MAX_UNDECIDED_SECONDS = 15.0
"""Limit of the time for which the origin of a failure stays undecided."""

UNSENT_KEY = "has_unsent"
"""Attribute of a heartbeat whose node has further records for the head."""

_STRAGGLER_ATTRIBUTES = (
    "straggler_ranks",
    "straggler_step",
    "straggler_progress",
    "blocked_by",
    "suspended_processes",
    "all_behind",
    "stacks",
    "stacks_pending",
)

_NODE_ATTRIBUTES = (
    *_STRAGGLER_ATTRIBUTES, "failure_origin", "final", "unread_ranks", UNSENT_KEY
)  # fmt: skip
"""Attributes that hold for one node only."""

_RANK_LISTS = ("died_ranks", "failed_ranks")


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """The newest heartbeat of one node; its attempt is an attempt of the run.

    `ranks` are the ranks of the node in that attempt. `age_seconds` is the time since it arrived.
    `is_lost` is whether the node has been silent for too long while its ranks had not ended.
    """

    heartbeat: Record
    host: str
    ranks: Collection[int]
    age_seconds: float
    is_lost: bool

    @property
    def seconds_since_failure(self) -> float:
        """Seconds since the first failure of a rank of the node; negative without one."""
        attributes = self.heartbeat.attributes
        if "cause" not in attributes:
            return -1.0
        return float(attributes.get("failed_seconds_ago", 0.0)) + self.age_seconds


def merge_heartbeats(
    run: str,
    node_heartbeats: Sequence[NodeHeartbeat],
    now_seconds: float,
    *,
    has_unheard_nodes: bool = False,
) -> Record:
    """The heartbeat of the run at `now_seconds` since the epoch, over nodes of the newest attempt.

    Values and attributes are those of a node's heartbeat (see `sentinel.live.liveness`), and:

    - values `nodes`, `nodes_lost`, and `lost_seconds`, the shortest silence of a lost node;
    - attributes `lost_ranks` and `lost_nodes` (hosts). Ranks of lost nodes count as died or failed
      only if that was reported before;
    - `blocked_by` is "node_lost" where the other ranks wait for lost nodes, and none is suspended;
    - `failure_origin` is "node_lost" where a lost node explains the first failure, and "undecided"
      while it may still turn out to.

    `has_unheard_nodes` is whether nodes are known without a heartbeat, as after a restart of the
    head. Measurements of the machines are merged by `NodeHardware`. Raises ValueError if
    `node_heartbeats` is empty.
    """
    attempt = max(each.heartbeat.attempt for each in node_heartbeats)
    current = [each for each in node_heartbeats if each.heartbeat.attempt == attempt]
    newest = max(current, key=lambda each: each.heartbeat.step_index).heartbeat
    lost = [each for each in current if each.is_lost]
    present = [each for each in current if not each.is_lost]
    values = _merge_values(present, lost)
    by_failure = _ordered_by_failure(current)
    attributes = {
        **_failure_attributes(current, by_failure),
        **_straggler_attributes(present),
        **_lost_node_attributes(lost),
    }
    attributes["state"] = _merged_state(present or lost, attributes.get("cause", ""))
    attributes["activity"] = _activity(present)
    attributes |= _stack_attributes(present)
    is_blocked = "straggler_ranks" in attributes and _is_blocked_by_silence(
        values["idle_seconds"], values["lost_seconds"]
    )
    if attributes["lost_ranks"] and is_blocked and "blocked_by" not in attributes:
        attributes |= {"straggler_ranks": attributes["lost_ranks"], "blocked_by": "node_lost"}
        attributes.pop("all_behind", None)
    attributes |= _failure_origin(
        by_failure, values["idle_seconds"], has_unheard_nodes=has_unheard_nodes
    )
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=newest.step,
        time=now_seconds,
        event=Event.HEARTBEAT,
        values=values,
        attributes=attributes,
        attempt=attempt,
        step_index=newest.step_index,
    )


def head_watch_heartbeat(heartbeat: Record, head_address: str, silent_seconds: float) -> Record:
    """What a deputy reports about the head, from the heartbeat of its own node.

    Values `nodes_lost` and `lost_seconds`. Attributes `head_lost`, the address of the head;
    `blocked_by` where the ranks of this node wait for it; and where one of them failed,
    `failure_origin` and the attributes of that failure. `head_address` is "" while the
    head answers.
    """
    if not head_address:
        return replace(heartbeat, values={"nodes_lost": 0.0, "lost_seconds": 0.0}, attributes={})
    attributes = {"head_lost": head_address}
    if "straggler_ranks" not in heartbeat.attributes or _is_blocked_by_silence(
        heartbeat.values.get("idle_seconds", 0.0), silent_seconds
    ):
        attributes["blocked_by"] = "node_lost"
    if "failed_seconds_ago" in heartbeat.attributes:
        attributes["failure_origin"] = "node_lost"
        attributes |= {
            name: heartbeat.attributes[name]
            for name in FAILURE_ATTRIBUTES
            if name in heartbeat.attributes
        }
    return replace(
        heartbeat, values={"nodes_lost": 1.0, "lost_seconds": silent_seconds}, attributes=attributes
    )


def _is_blocked_by_silence(idle_seconds: float, silent_seconds: float) -> bool:
    """Whether ranks with that idle time stopped when a node fell silent."""
    return idle_seconds + BLOCKED_AFTER_SILENCE_SECONDS >= silent_seconds


def _merge_values(
    present: Sequence[NodeHeartbeat], lost: Sequence[NodeHeartbeat]
) -> dict[str, float]:
    return {
        "ranks_running": _sum("ranks_running", present),
        "ranks_gone": _sum("ranks_gone", [*present, *lost]),
        "ranks_failed": _sum("ranks_failed", [*present, *lost]),
        "idle_seconds": min(
            [
                each.heartbeat.values.get("idle_seconds", 0.0) + each.age_seconds
                for each in present or lost
            ]
        ),
        "inactive_seconds": _inactive_seconds(present or lost),
        "nodes": float(len(present) + len(lost)),
        "nodes_lost": float(len(lost)),
        "lost_seconds": min((each.age_seconds for each in lost), default=0.0),
    }


def _inactive_seconds(node_heartbeats: Sequence[NodeHeartbeat]) -> float:
    """Seconds without any sign of life, on the nodes with suspended ranks if there are some."""
    suspended = [each for each in node_heartbeats if each.heartbeat.attributes.get("blocked_by")]
    return min(
        each.heartbeat.values.get("inactive_seconds", _value("idle_seconds", each))
        + each.age_seconds
        for each in suspended or node_heartbeats
    )


def _lost_node_attributes(lost: Sequence[NodeHeartbeat]) -> dict[str, str]:
    ranks = sorted(rank for each in lost for rank in _lost_ranks(each))
    hosts = sorted({each.host for each in lost})
    return {"lost_ranks": ",".join(map(str, ranks)), "lost_nodes": ",".join(hosts)}


def _value(name: str, each: NodeHeartbeat) -> float:
    return each.heartbeat.values.get(name, 0.0)


def _sum(name: str, node_heartbeats: Iterable[NodeHeartbeat]) -> float:
    return sum([each.heartbeat.values.get(name, 0.0) for each in node_heartbeats]) + 0.0


def _lost_ranks(each: NodeHeartbeat) -> set[int]:
    """The ranks of a lost node, without those whose failure was reported."""
    return set(each.ranks) - {
        *_parse_ranks("died_ranks", each),
        *_parse_ranks("failed_ranks", each),
    }


def _parse_ranks(name: str, each: NodeHeartbeat) -> list[int]:
    return [int(rank) for rank in each.heartbeat.attributes.get(name, "").split(",") if rank]


def _failure_attributes(
    node_heartbeats: Sequence[NodeHeartbeat], by_failure: Sequence[NodeHeartbeat]
) -> dict[str, str]:
    """Attributes of the node with the first failure, or of any; failed ranks of all nodes."""
    first = by_failure[0].heartbeat.attributes
    attributes = {name: text for name, text in first.items() if name not in _NODE_ATTRIBUTES}
    for name in _RANK_LISTS:
        attributes[name] = ",".join(
            [ranks for each in by_failure if (ranks := each.heartbeat.attributes.get(name))]
        )
    failed = [each for each in node_heartbeats if "cause" in each.heartbeat.attributes]
    if failed:
        # At time 0 now, so that the times are the negative ages of the failures.
        ends = [end for each in failed for end in _ends(each)]
        attributes |= failure_attributes(ends, 0.0, CLOCK_ERROR_SECONDS)
    if any(
        "elastic_restart" not in each.heartbeat.attributes
        or each.age_seconds > RESTART_TRUST_SECONDS
        for each in failed
    ):
        attributes.pop("elastic_restart", None)
    if any(
        each.heartbeat.attributes.get("launcher") == "running"
        for each in node_heartbeats
        if not each.is_lost
    ):
        attributes["launcher"] = "running"
    return attributes


def _ends(each: NodeHeartbeat) -> list[RankEnd]:
    """The first failure of a node, and the ends that followed it there."""
    # Followers of a node stay followers: errors of a connection cause nothing.
    following = {"outcome": "exception", "connection_error": "yes"}
    first = _first_end(each)
    return [
        first,
        RankEnd(tuple(_parse_ranks("following_ranks", each)), first.ended_at, following),
    ]


def _first_end(each: NodeHeartbeat) -> RankEnd:
    """The first failure of a node. The time now is 0, so that of the failure is negative."""
    known = each.heartbeat.attributes
    cause = known["cause"]
    attributes = {name: known[name] for name in END_ATTRIBUTES if name in known}
    attributes["outcome"] = "died" if cause == "stopped" else cause
    if cause == "stopped":
        attributes[STOP_SIGNAL_KEY] = known.get("signal", "SIGTERM")
    if known.get("end_kind") == "consequence":
        attributes["connection_error"] = "yes"
    ranks = _parse_ranks("culprit_ranks", each)
    return RankEnd(tuple(ranks), -each.seconds_since_failure, attributes)


def _ordered_by_failure(node_heartbeats: Sequence[NodeHeartbeat]) -> list[NodeHeartbeat]:
    """The node of the first failure, then other nodes with failed ranks, then those without."""
    failed = [each for each in node_heartbeats if each.seconds_since_failure >= 0.0]
    if not failed:
        return [*node_heartbeats]
    ends = [_first_end(each) for each in failed]
    causes, _ = first_failure(ends, CLOCK_ERROR_SECONDS)
    first = [each for each, end in zip(failed, ends, strict=True) if end in causes[:1]]
    return sorted(
        node_heartbeats, key=lambda each: (each not in first, -each.seconds_since_failure)
    )


def _failure_origin(
    by_failure: Sequence[NodeHeartbeat], idle_seconds: float, *, has_unheard_nodes: bool
) -> dict[str, str]:
    """Whether the loss of another node explains the first failure, as far as that is known.

    When a node dies, ranks of other nodes may raise at once; only its silence shows that it died. A
    rank that is killed is not explained by another node.
    """
    first = by_failure[0]
    attributes = first.heartbeat.attributes
    if first.is_lost or "failed_seconds_ago" not in attributes:
        return {}
    if attributes.get("cause") == "died" and attributes.get("signal") not in (None, "SIGABRT"):
        return {}
    silent_since_failure = [
        each
        for each in by_failure
        if each is not first
        and each.age_seconds > first.seconds_since_failure - HEARTBEAT_DELAY_SECONDS
    ]
    # A node is no explanation if ranks took steps long after it fell silent.
    suspects = [
        each
        for each in silent_since_failure
        if _is_blocked_by_silence(idle_seconds, each.age_seconds)
    ]
    if any(each.is_lost for each in suspects):
        return {"failure_origin": "node_lost"}
    is_open = has_unheard_nodes or any(_value("ranks_running", each) for each in suspects)
    if is_open and first.seconds_since_failure < MAX_UNDECIDED_SECONDS:
        return {"failure_origin": "undecided"}
    return {}


def _straggler_attributes(present: Sequence[NodeHeartbeat]) -> dict[str, str]:
    """The running ranks that block the others: suspended ones, else those with least progress."""
    running = [each for each in present if each.heartbeat.attributes.get("straggler_ranks")]
    if not running:
        return {}
    suspended = [each for each in running if each.heartbeat.attributes.get("blocked_by")]
    progress = [_progress(each) for each in suspended or running]
    least = min(progress)
    stragglers = suspended or [
        each for each, own in zip(running, progress, strict=True) if own == least
    ]
    first = (suspended or running)[progress.index(least)].heartbeat.attributes
    attributes = {
        name: first[name]
        for name in ("straggler_step", "straggler_progress", "blocked_by")
        if name in first
    }
    if suspended:
        attributes["suspended_processes"] = ",".join(
            each.heartbeat.attributes.get("suspended_processes", "") for each in suspended
        )
    attributes["straggler_ranks"] = ",".join(
        str(rank)
        for rank in sorted(
            rank for each in stragglers for rank in _parse_ranks("straggler_ranks", each)
        )
    )
    if (
        not suspended
        and len(stragglers) == len(running)
        and all("all_behind" in each.heartbeat.attributes for each in stragglers)
    ):
        attributes["all_behind"] = "yes"
    return attributes


def _stack_attributes(present: Sequence[NodeHeartbeat]) -> dict[str, str]:
    """The stacks of all ranks, and whether some are still to come."""
    texts = (each.heartbeat.attributes.get("stacks", "") for each in present)
    stacks = group_stacks(stack for text in texts if text for stack in _parse_stacks(text))
    is_pending = any("stacks_pending" in each.heartbeat.attributes for each in present)
    return {
        **({"stacks": serialize_stacks(stacks)} if stacks else {}),
        **({"stacks_pending": "yes"} if is_pending else {}),
    }


def _activity(present: Sequence[NodeHeartbeat]) -> str:
    texts = (each.heartbeat.attributes.get("activity", "") for each in present)
    return ",".join(sorted({name for text in texts for name in text.split(",")} - {""}))


def _progress(each: NodeHeartbeat) -> tuple[int, ...]:
    return _parse_counts(each.heartbeat.attributes.get("straggler_progress", "0,0"))


# Cached: a run that stands still reports the same stacks.
_parse_stacks = lru_cache(maxsize=64)(parse_stacks)


# Cached: nodes in lockstep report the same text.
@lru_cache(maxsize=256)
def _parse_counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _merged_state(node_heartbeats: Sequence[NodeHeartbeat], cause: str) -> str:
    states = {each.heartbeat.attributes.get("state", "") for each in node_heartbeats}
    if states & {"running", "starting"}:
        has_steps = any(each.heartbeat.step_index > 0 for each in node_heartbeats)
        return "running" if has_steps else "starting"
    return ended_state(cause) if states - {""} else ""
