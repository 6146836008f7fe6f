"""Roll: the TICKs of all nodes made the one TICK of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sentinel.model.record import WHOLE_RUN, Event, Record

SIMULTANEOUS_FAILURE_SECONDS = 1.0
"""Ranks of several nodes that fell within so little of each other fell together: nodes are heard
at different times."""

BLOCKED_AFTER_SILENCE_SECONDS = 5.0
"""Ranks whose last step came no later than this after the last word of a node wait for its
ranks."""

RESTART_TRUST_SECONDS = 5.0
"""For which a node that is not heard is believed that its ranks may come back."""

HEARTBEAT_DELAY_SECONDS = 1.0
"""What is heard of a node so long after a rank fell, the node said after it."""

MAX_UNDECIDED_SECONDS = 15.0
"""How long, at most, it is left open why a rank fell."""

_STRAGGLER_FACTS = (
    "straggler_ranks",
    "straggler_step",
    "straggler_progress",
    "blocked_by",
    "all_behind",
)

_SINGLE_NODE_FACTS = (*_STRAGGLER_FACTS, "failure_origin", "final")
"""What one node cannot say for all."""

_FAILURE_FACTS = ("cause", "exception", "code", "died_ranks", "failed_ranks")


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """The newest TICK of one node; its attempt is already the run's.

    `ranks` are those that the node has in that attempt. `age` is how long ago it was heard, in
    seconds. `lost_ranks` is whether nothing was heard for too long though its ranks had not ended.
    """

    heartbeat: Record
    host: str
    ranks: Collection[int]
    age_seconds: float
    is_lost: bool

    @property
    def seconds_since_failure(self) -> float:
        """Seconds since its first rank fell; below 0 where none did."""
        facts = self.heartbeat.attributes
        return (
            float(facts.get("failed_seconds_ago", 0.0)) + self.age_seconds
            if "cause" in facts
            else -1.0
        )


def merge_heartbeats(
    run: str,
    node_heartbeats: Sequence[NodeHeartbeat],
    now_seconds: float,
    *,
    has_unheard_nodes: bool = False,
) -> Record:
    """What a TICK says of all nodes, at `now` in seconds since the epoch.

    Values and facts are those of a single node's, over the nodes of the newest attempt; and values
    `nodes`, `nodes_lost` and `lost_seconds` since any of the latter was heard, and facts `lost_ranks` and
    `lost_nodes`, the ranks and hosts these are; `blocked_by` is "node_lost" where the others wait for them.
    Ranks of lost nodes count for gone or failed only where that was known before. Where a rank fell
    for want of a lost node, the fact `failure_origin` is "node_lost"; while that may yet turn out, it is "undecided".
    `unheard` is whether there are nodes of which nothing is told, as after a restart of the head.
    What is measured of machines, `Machines` brings together. Raises ValueError if nothing is told.
    """
    attempt = max(each.heartbeat.attempt for each in node_heartbeats)
    current = [each for each in node_heartbeats if each.heartbeat.attempt == attempt]
    newest = max(current, key=lambda each: each.heartbeat.step_index).heartbeat
    lost = [each for each in current if each.is_lost]
    present = [each for each in current if not each.is_lost]
    values = _merge_values(present, lost)
    facts = {
        **_failure_attributes(current),
        **_straggler_attributes(present),
        **_lost_node_attributes(lost),
    }
    facts["state"] = _merged_state(present or lost)
    stands = "straggler_ranks" in facts and _is_blocked_by_silence(
        values["idle_seconds"], values["lost_seconds"]
    )
    if facts["lost_ranks"] and stands:
        facts |= {"straggler_ranks": facts["lost_ranks"], "blocked_by": "node_lost"}
        facts.pop("all_behind", None)
    facts |= _node_loss_attributes(
        current, values["idle_seconds"], has_unheard_nodes=has_unheard_nodes
    )
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=newest.step,
        time=now_seconds,
        event=Event.HEARTBEAT,
        values=values,
        attributes=facts,
        attempt=attempt,
        step_index=newest.step_index,
    )


def head_watch_heartbeat(heartbeat: Record, head_address: str, silent_seconds: float) -> Record:
    """What a node that judges nothing else has to say of the host `head`, which judges the run.

    `tick` is the node's own. Values `nodes_lost` and `lost_seconds`; facts `head_lost`, and `blocked_by`
    where its ranks stand since, and `failure_origin` with what is known of the first of them that fell. An
    empty `head` is one that is heard.
    """
    if not head_address:
        return replace(heartbeat, values={"nodes_lost": 0.0, "lost_seconds": 0.0}, attributes={})
    facts = {"head_lost": head_address}
    if "straggler_ranks" not in heartbeat.attributes or _is_blocked_by_silence(
        heartbeat.values.get("idle_seconds", 0.0), silent_seconds
    ):
        facts["blocked_by"] = "node_lost"
    if "failed_seconds_ago" in heartbeat.attributes:
        known = {
            name: heartbeat.attributes[name]
            for name in _FAILURE_FACTS
            if name in heartbeat.attributes
        }
        facts |= {**known, "failure_origin": "node_lost"}
    return replace(
        heartbeat, values={"nodes_lost": 1.0, "lost_seconds": silent_seconds}, attributes=facts
    )


def _is_blocked_by_silence(idle_seconds: float, silent_seconds: float) -> bool:
    """Whether ranks that are idle for so long stopped when a node fell silent."""
    return idle_seconds + BLOCKED_AFTER_SILENCE_SECONDS >= silent_seconds


def _merge_values(
    present: Sequence[NodeHeartbeat], lost: Sequence[NodeHeartbeat]
) -> dict[str, float]:
    return {
        "ranks_running": _sum("ranks_running", present),
        "ranks_gone": _sum("ranks_gone", [*present, *lost]),
        "ranks_failed": _sum("ranks_failed", [*present, *lost]),
        "idle_seconds": min(
            _value("idle_seconds", each) + each.age_seconds for each in present or lost
        ),
        "nodes": float(len(present) + len(lost)),
        "nodes_lost": float(len(lost)),
        "lost_seconds": min((each.age_seconds for each in lost), default=0.0),
    }


def _lost_node_attributes(lost: Sequence[NodeHeartbeat]) -> dict[str, str]:
    ranks = sorted(rank for each in lost for rank in _lost_ranks(each))
    hosts = sorted({each.host for each in lost})
    return {"lost_ranks": ",".join(map(str, ranks)), "lost_nodes": ",".join(hosts)}


def _value(name: str, each: NodeHeartbeat) -> float:
    return each.heartbeat.values.get(name, 0.0)


def _sum(name: str, node_heartbeats: Iterable[NodeHeartbeat]) -> float:
    return sum(_value(name, each) for each in node_heartbeats) + 0.0


def _lost_ranks(each: NodeHeartbeat) -> set[int]:
    """The ranks of a lost node, but those that were known to have fallen."""
    return set(each.ranks) - {
        *_parse_ranks("died_ranks", each),
        *_parse_ranks("failed_ranks", each),
    }


def _parse_ranks(name: str, each: NodeHeartbeat) -> list[int]:
    return [int(rank) for rank in each.heartbeat.attributes.get(name, "").split(",") if rank]


def _failure_attributes(node_heartbeats: Sequence[NodeHeartbeat]) -> dict[str, str]:
    """What the node of the first to fall says, or any; and who fell, its own before all others."""
    order = _ordered_by_failure(node_heartbeats)
    first = order[0].heartbeat.attributes
    facts = {name: fact for name, fact in first.items() if name not in _SINGLE_NODE_FACTS}
    for name in ("died_ranks", "failed_ranks"):
        facts[name] = ",".join(
            [fact for each in order if (fact := each.heartbeat.attributes.get(name))]
        )
    fallen = [each for each in node_heartbeats if "cause" in each.heartbeat.attributes]
    if any(
        "elastic_restart" not in each.heartbeat.attributes
        or each.age_seconds > RESTART_TRUST_SECONDS
        for each in fallen
    ):
        facts.pop("elastic_restart", None)
    if order[0].seconds_since_failure >= 0.0:
        facts["failed_seconds_ago"] = f"{order[0].seconds_since_failure:.3f}"
    if any(
        each.heartbeat.attributes.get("launcher") == "running"
        for each in node_heartbeats
        if not each.is_lost
    ):
        facts["launcher"] = "running"
    return facts


def _ordered_by_failure(node_heartbeats: Sequence[NodeHeartbeat]) -> list[NodeHeartbeat]:
    """Those where a rank fell, the first before the others; then those where none did.

    Of ranks that fell together, a death comes before the errors that it causes.
    """
    first = max([each.seconds_since_failure for each in node_heartbeats])
    if first < 0.0:
        return [*node_heartbeats]
    order = sorted(node_heartbeats, key=lambda each: -each.seconds_since_failure)
    return sorted(
        order,
        key=lambda each: (
            each.seconds_since_failure < max(0.0, first - SIMULTANEOUS_FAILURE_SECONDS),
            each.heartbeat.attributes.get("cause") != "died",
        ),
    )


def _node_loss_attributes(
    node_heartbeats: Sequence[NodeHeartbeat], idle_seconds: float, *, has_unheard_nodes: bool
) -> dict[str, str]:
    """Whether the first rank that fell did so for want of another node, as far as that is known.

    When a node dies, ranks of others may raise at once; that it is dead, only its silence says.
    """
    first = _ordered_by_failure(node_heartbeats)[0]
    if first.is_lost or "failed_seconds_ago" not in first.heartbeat.attributes:
        return {}
    others = [each for each in node_heartbeats if each is not first]
    silent = [
        each
        for each in others
        if each.age_seconds > first.seconds_since_failure - HEARTBEAT_DELAY_SECONDS
    ]
    # Those without whom the first to fall went on are not what it fell for.
    missed = [each for each in silent if _is_blocked_by_silence(idle_seconds, each.age_seconds)]
    if any(each.is_lost for each in missed):
        return {"failure_origin": "node_lost"}
    unsure = has_unheard_nodes or any(_value("ranks_running", each) for each in missed)
    return (
        {"failure_origin": "undecided"}
        if unsure and first.seconds_since_failure < MAX_UNDECIDED_SECONDS
        else {}
    )


def _straggler_attributes(present: Sequence[NodeHeartbeat]) -> dict[str, str]:
    """Who of all running ranks holds the others: stopped ones, else those that got least far."""
    running = [each for each in present if each.heartbeat.attributes.get("straggler_ranks")]
    if not running:
        return {}
    held = [each for each in running if each.heartbeat.attributes.get("blocked_by")]
    reached = [_progress(each) for each in held or running]
    lowest = min(reached)
    behind = held or [each for each, far in zip(running, reached, strict=True) if far == lowest]
    first = (held or running)[reached.index(lowest)].heartbeat.attributes
    facts = {
        name: first[name]
        for name in ("straggler_step", "straggler_progress", "blocked_by")
        if name in first
    }
    facts["straggler_ranks"] = ",".join(
        str(r) for r in sorted(r for e in behind for r in _parse_ranks("straggler_ranks", e))
    )
    if (
        not held
        and len(behind) == len(running)
        and all("all_behind" in e.heartbeat.attributes for e in behind)
    ):
        facts["all_behind"] = "yes"
    return facts


def _progress(each: NodeHeartbeat) -> tuple[int, ...]:
    return _parse_counts(each.heartbeat.attributes.get("straggler_progress", "0,0"))


# Nodes in step with each other all say the same.
@lru_cache(maxsize=256)
def _parse_counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _merged_state(node_heartbeats: Sequence[NodeHeartbeat]) -> str:
    states = {each.heartbeat.attributes.get("state", "") for each in node_heartbeats}
    if states & {"running", "starting"}:
        return (
            "running"
            if any(each.heartbeat.step_index > 0 for each in node_heartbeats)
            else "starting"
        )
    return next((state for state in ("died", "failed", "finished") if state in states), "")
