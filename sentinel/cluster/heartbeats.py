"""Roll: the TICKs of all nodes made the one TICK of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sentinel.model.record import WHOLE_RUN, Event, Record

TOGETHER_SECONDS = 1.0
"""Ranks of several nodes that fell within so little of each other fell together: nodes are heard
at different times."""

AT_ONCE_SECONDS = 5.0
"""Ranks whose last step came no later than this after the last word of a node wait for its
ranks."""

FRESH_SECONDS = 5.0
"""For which a node that is not heard is believed that its ranks may come back."""

SPOKEN_SECONDS = 1.0
"""What is heard of a node so long after a rank fell, the node said after it."""

OPEN_SECONDS = 15.0
"""How long, at most, it is left open why a rank fell."""

_BEHIND = ("behind", "behind_step", "behind_at", "held", "everyone")

_OWN = (*_BEHIND, "fall", "final")
"""What one node cannot say for all."""

_FALLEN = ("cause", "exception", "code", "gone", "failed")


@dataclass(frozen=True, slots=True)
class Told:
    """The newest TICK of one node; its attempt is already the run's.

    `ranks` are those that the node has in that attempt. `age` is how long ago it was heard, in
    seconds. `lost` is whether nothing was heard for too long though its ranks had not ended.
    """

    tick: Record
    host: str
    ranks: Collection[int]
    age: float
    lost: bool

    @property
    def fell(self) -> float:
        """Seconds since its first rank fell; below 0 where none did."""
        facts = self.tick.facts
        return float(facts.get("fell_ago", 0.0)) + self.age if "cause" in facts else -1.0


def merged(run: str, told: Sequence[Told], now: float, *, unheard: bool = False) -> Record:
    """What a TICK says of all nodes, at `now` in seconds since the epoch.

    Values and facts are those of a single node's, over the nodes of the newest attempt; and values
    `nodes`, `nodes_lost` and `lost_seconds` since any of the latter was heard, and facts `lost` and
    `lost_nodes`, the ranks and hosts these are; `held` is "lost" where the others wait for them.
    Ranks of lost nodes count for gone or failed only where that was known before. Where a rank fell
    for want of a lost node, the fact `fall` is "lost"; while that may yet turn out, it is "open".
    `unheard` is whether there are nodes of which nothing is told, as after a restart of the head.
    What is measured of machines, `Machines` brings together. Raises ValueError if nothing is told.
    """
    attempt = max(each.tick.attempt for each in told)
    current = [each for each in told if each.tick.attempt == attempt]
    newest = max(current, key=lambda each: each.tick.beat).tick
    lost = [each for each in current if each.lost]
    present = [each for each in current if not each.lost]
    values = _values(present, lost)
    facts = {**_fallen(current), **_stragglers(present), **_lost(lost)}
    facts["state"] = _state(present or lost)
    stands = "behind" in facts and _waits(values["idle_seconds"], values["lost_seconds"])
    if facts["lost"] and stands:
        facts |= {"behind": facts["lost"], "held": "lost"}
        facts.pop("everyone", None)
    facts |= _fall(current, values["idle_seconds"], unheard=unheard)
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=newest.step,
        time=now,
        event=Event.TICK,
        values=values,
        facts=facts,
        attempt=attempt,
        beat=newest.beat,
    )


def headless(tick: Record, head: str, silent: float) -> Record:
    """What a node that judges nothing else has to say of the host `head`, which judges the run.

    `tick` is the node's own. Values `nodes_lost` and `lost_seconds`; facts `head_lost`, and `held`
    where its ranks stand since, and `fall` with what is known of the first of them that fell. An
    empty `head` is one that is heard.
    """
    if not head:
        return replace(tick, values={"nodes_lost": 0.0, "lost_seconds": 0.0}, facts={})
    facts = {"head_lost": head}
    if "behind" not in tick.facts or _waits(tick.values.get("idle_seconds", 0.0), silent):
        facts["held"] = "lost"
    if "fell_ago" in tick.facts:
        known = {name: tick.facts[name] for name in _FALLEN if name in tick.facts}
        facts |= {**known, "fall": "lost"}
    return replace(tick, values={"nodes_lost": 1.0, "lost_seconds": silent}, facts=facts)


def _waits(idle: float, silent: float) -> bool:
    """Whether ranks that are idle for so long stopped when a node fell silent."""
    return idle + AT_ONCE_SECONDS >= silent


def _values(present: Sequence[Told], lost: Sequence[Told]) -> dict[str, float]:
    return {
        "ranks_running": _sum("ranks_running", present),
        "ranks_gone": _sum("ranks_gone", [*present, *lost]),
        "ranks_failed": _sum("ranks_failed", [*present, *lost]),
        "idle_seconds": min(_value("idle_seconds", each) + each.age for each in present or lost),
        "nodes": float(len(present) + len(lost)),
        "nodes_lost": float(len(lost)),
        "lost_seconds": min((each.age for each in lost), default=0.0),
    }


def _lost(lost: Sequence[Told]) -> dict[str, str]:
    ranks = sorted(rank for each in lost for rank in _unended(each))
    hosts = sorted({each.host for each in lost})
    return {"lost": ",".join(map(str, ranks)), "lost_nodes": ",".join(hosts)}


def _value(name: str, each: Told) -> float:
    return each.tick.values.get(name, 0.0)


def _sum(name: str, told: Iterable[Told]) -> float:
    return sum(_value(name, each) for each in told) + 0.0


def _unended(each: Told) -> set[int]:
    """The ranks of a lost node, but those that were known to have fallen."""
    return set(each.ranks) - {*_ranks("gone", each), *_ranks("failed", each)}


def _ranks(name: str, each: Told) -> list[int]:
    return [int(rank) for rank in each.tick.facts.get(name, "").split(",") if rank]


def _fallen(told: Sequence[Told]) -> dict[str, str]:
    """What the node of the first to fall says, or any; and who fell, its own before all others."""
    order = _by_fall(told)
    first = order[0].tick.facts
    facts = {name: fact for name, fact in first.items() if name not in _OWN}
    for name in ("gone", "failed"):
        facts[name] = ",".join([fact for each in order if (fact := each.tick.facts.get(name))])
    fallen = [each for each in told if "cause" in each.tick.facts]
    if any("regroup" not in each.tick.facts or each.age > FRESH_SECONDS for each in fallen):
        facts.pop("regroup", None)
    if order[0].fell >= 0.0:
        facts["fell_ago"] = f"{order[0].fell:.3f}"
    if any(each.tick.facts.get("launcher") == "running" for each in told if not each.lost):
        facts["launcher"] = "running"
    return facts


def _by_fall(told: Sequence[Told]) -> list[Told]:
    """Those where a rank fell, the first before the others; then those where none did.

    Of ranks that fell together, a death comes before the errors that it causes.
    """
    first = max([each.fell for each in told])
    if first < 0.0:
        return [*told]
    order = sorted(told, key=lambda each: -each.fell)
    return sorted(
        order,
        key=lambda each: (
            each.fell < max(0.0, first - TOGETHER_SECONDS),
            each.tick.facts.get("cause") != "died",
        ),
    )


def _fall(told: Sequence[Told], idle: float, *, unheard: bool) -> dict[str, str]:
    """Whether the first rank that fell did so for want of another node, as far as that is known.

    When a node dies, ranks of others may raise at once; that it is dead, only its silence says.
    """
    first = _by_fall(told)[0]
    if first.lost or "fell_ago" not in first.tick.facts:
        return {}
    others = [each for each in told if each is not first]
    silent = [each for each in others if each.age > first.fell - SPOKEN_SECONDS]
    # Those without whom the first to fall went on are not what it fell for.
    missed = [each for each in silent if _waits(idle, each.age)]
    if any(each.lost for each in missed):
        return {"fall": "lost"}
    unsure = unheard or any(_value("ranks_running", each) for each in missed)
    return {"fall": "open"} if unsure and first.fell < OPEN_SECONDS else {}


def _stragglers(present: Sequence[Told]) -> dict[str, str]:
    """Who of all running ranks holds the others: stopped ones, else those that got least far."""
    running = [each for each in present if each.tick.facts.get("behind")]
    if not running:
        return {}
    held = [each for each in running if each.tick.facts.get("held")]
    reached = [_reached(each) for each in held or running]
    lowest = min(reached)
    behind = held or [each for each, far in zip(running, reached, strict=True) if far == lowest]
    first = (held or running)[reached.index(lowest)].tick.facts
    facts = {name: first[name] for name in ("behind_step", "behind_at", "held") if name in first}
    facts["behind"] = ",".join(
        str(r) for r in sorted(r for e in behind for r in _ranks("behind", e))
    )
    if not held and len(behind) == len(running) and all("everyone" in e.tick.facts for e in behind):
        facts["everyone"] = "yes"
    return facts


def _reached(each: Told) -> tuple[int, ...]:
    return _counts(each.tick.facts.get("behind_at", "0,0"))


# Nodes in step with each other all say the same.
@lru_cache(maxsize=256)
def _counts(told: str) -> tuple[int, ...]:
    return tuple(map(int, told.split(",")))


def _state(told: Sequence[Told]) -> str:
    states = {each.tick.facts.get("state", "") for each in told}
    if states & {"running", "starting"}:
        return "running" if any(each.tick.beat > 0 for each in told) else "starting"
    return next((state for state in ("died", "failed", "finished") if state in states), "")
