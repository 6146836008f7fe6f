"""Plan: how one shape of log, the same names time after time, becomes one packed record.

Reading names by a prepared getter, comparing types, and packing by a prepared struct, all in C, is
what keeps a log of twenty numbers near the cost of copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from struct import Struct
from typing import Any

from sentinel.client.capture.scalars import Refused, name_is_good, number
from sentinel.transport.record_codec import HEAD, Packer, Schema

PLAIN = frozenset({float, int})
"""Types the struct packs by itself. Exactly these: a subclass could run its own code."""
NAMES_KEPT = 2048
"""Different names of one rank in one attempt."""
_PLANS_KEPT = 256
_TEXT_LIMIT = 1024
FAR = 1 << 62
"""Step numbers beyond this are nobody's."""

Key = tuple[int | str, tuple[str, ...]]
"""How many names, or the one name there is, and what is held with them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Names held by us, names logged by the user, and the schema of both together.

    `head` packs a record up to the held values, `body` packs the logged ones behind it.
    A name sent twice counts with its last value, so what the user says himself wins; `doubled` are
    the places of such names among the held ones.
    """

    held: tuple[str, ...]
    names: tuple[str, ...]
    schema: Schema
    doubled: tuple[int, ...]
    size: int
    """How many names are logged; -1 where the shortest way is closed to this plan."""
    floats: list[type]
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    head: Callable[..., bytes]
    body: Callable[..., bytes]


@dataclass
class Planner:
    """Makes plans, and reads logs for which there is none. `drop` counts what is refused."""

    packer: Packer
    drop: Callable[[str], None]
    plans: dict[Key, Plan] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def plan(self, values: Mapping[str, Any], held: tuple[str, ...]) -> Plan:
        """The plan for these names, kept for the next log of that size."""
        names = tuple(values)
        known = self.plans.get(_key(names, held))
        if known is not None and known.names == names:
            return known
        if len(self.plans) >= _PLANS_KEPT:
            self.plans.clear()
        doubled = tuple(at for at, name in enumerate(held) if name in values)
        schema = self.packer.schema((*held, *names))
        head, body = Struct(f"{HEAD}{len(held)}d"), Struct(f"{len(names)}d")
        size = len(names) if len(names) > 1 and not doubled else -1
        pick = itemgetter(*names) if size > 0 else tuple
        floats: list[type] = [float] * len(names)
        plan = Plan(held, names, schema, doubled, size, floats, pick, head.pack, body.pack)
        self.plans[_key(names, held)] = plan
        return plan

    def likely(self, values: Mapping[str, Any], held: tuple[str, ...]) -> Plan | None:
        """The plan last made for a log of that size, or of that one name."""
        return self.plans.get(_key(values, held))

    def sort(self, items: Iterable[tuple[Any, Any]]) -> tuple[dict[str, float], dict[str, Any]]:
        """Numbers, and tensors still on a device, of a log; all else is refused and counted."""
        numbers: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        for name, value in items:
            try:
                self._check(name)
                found = number(value)
                (numbers if type(found) is float else tensors)[name] = found
            except Refused as refusal:
                self.drop(refusal.reason)
        return numbers, tensors

    def weight(self, given: Any) -> float:
        """How many samples stand behind a log; 1 where that was no positive number."""
        found, _ = self.sort([("weight", given)])
        weight = found.get("weight", 1.0)
        if 0.0 < weight < inf:
            return weight
        self.drop("range")
        return 1.0

    def whole(self, step: Any) -> int | None:
        """A step number, or None where it was no whole number."""
        found, _ = self.sort([("step", step)])
        number_ = found.get("step")
        if number_ is None:
            return None
        if number_.is_integer() and abs(number_) < FAR:
            return int(number_)
        self.drop("range")
        return None

    def told(
        self, facts: Mapping[str, Any]
    ) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
        """Facts told apart: numbers, tensors still on a device, and texts of bearable length."""
        texts = {name: fact[:_TEXT_LIMIT] for name, fact in facts.items() if type(fact) is str}
        values, tensors = self.sort(item for item in facts.items() if item[0] not in texts)
        return values, tensors, texts

    def _check(self, name: Any) -> None:
        if not name_is_good(name):
            raise Refused("key")
        if name not in self.names:
            if len(self.names) >= NAMES_KEPT:
                raise Refused("too_many_names")
            self.names.add(name)


def _key(names: Collection[str], held: tuple[str, ...]) -> Key:
    """Names that come one at a time, as TensorBoard's do, take turns: each has its plan."""
    if len(names) == 1:
        name = next(iter(names))
        # Whatever else somebody took for a key is not to be asked for its hash.
        return (name if type(name) is str else 1), held
    return len(names), held
