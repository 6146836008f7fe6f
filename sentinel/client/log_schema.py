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

from sentinel.client.capture.scalars import RejectedValueError, is_valid_name, read_number
from sentinel.transport.record_codec import VALUES_HEADER_FORMAT, NameSchema, RecordEncoder

PLAIN_TYPES = frozenset({float, int})
"""Types the struct packs by itself. Exactly these: a subclass could run its own code."""
MAX_NAMES = 2048
"""Different names of one rank in one attempt."""
_MAX_SCHEMAS = 256
_MAX_TEXT_CHARS = 1024
MAX_STEP_NUMBER = 1 << 62
"""Step numbers beyond this are nobody's."""

SchemaKey = tuple[int | str, tuple[str, ...]]
"""How many names, or the one name there is, and what is held with them."""


@dataclass(frozen=True, slots=True)
class LogSchema:
    """Names held by us, names logged by the user, and the schema of both together.

    `head` packs a record up to the held values, `body` packs the logged ones behind it.
    A name sent twice counts with its last value, so what the user says himself wins; `doubled` are
    the places of such names among the held ones.
    """

    own_names: tuple[str, ...]
    logged_names: tuple[str, ...]
    name_schema: NameSchema
    duplicate_positions: tuple[int, ...]
    fast_path_size: int
    """How many names are logged; -1 where the shortest way is closed to this plan."""
    float_types: list[type]
    get_values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    pack_own: Callable[..., bytes]
    pack_logged: Callable[..., bytes]


@dataclass
class LogSchemaCache:
    """Makes plans, and reads logs for which there is none. `drop` counts what is refused."""

    encoder: RecordEncoder
    count_drop: Callable[[str], None]
    schemas: dict[SchemaKey, LogSchema] = field(default_factory=dict)
    known_names: set[str] = field(default_factory=set)

    def get_or_create(self, values: Mapping[str, Any], own_names: tuple[str, ...]) -> LogSchema:
        """The plan for these names, kept for the next log of that size."""
        names = tuple(values)
        known = self.schemas.get(_schema_key(names, own_names))
        if known is not None and known.logged_names == names:
            return known
        if len(self.schemas) >= _MAX_SCHEMAS:
            self.schemas.clear()
        doubled = tuple(at for at, name in enumerate(own_names) if name in values)
        schema = self.encoder.schema_for((*own_names, *names))
        head, body = Struct(f"{VALUES_HEADER_FORMAT}{len(own_names)}d"), Struct(f"{len(names)}d")
        size = len(names) if len(names) > 1 and not doubled else -1
        pick = itemgetter(*names) if size > 0 else tuple
        floats: list[type] = [float] * len(names)
        plan = LogSchema(
            own_names, names, schema, doubled, size, floats, pick, head.pack, body.pack
        )
        self.schemas[_schema_key(names, own_names)] = plan
        return plan

    def find_cached(
        self, values: Mapping[str, Any], own_names: tuple[str, ...]
    ) -> LogSchema | None:
        """The plan last made for a log of that size, or of that one name."""
        return self.schemas.get(_schema_key(values, own_names))

    def split_by_device(
        self, items: Iterable[tuple[Any, Any]]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Numbers, and tensors still on a device, of a log; all else is refused and counted."""
        numbers: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        for name, value in items:
            try:
                self._check_name(name)
                found = read_number(value)
                (numbers if type(found) is float else tensors)[name] = found
            except RejectedValueError as refusal:
                self.count_drop(refusal.reason)
        return numbers, tensors

    def read_weight(self, value: Any) -> float:
        """How many samples stand behind a log; 1 where that was no positive number."""
        found, _ = self.split_by_device([("weight", value)])
        weight = found.get("weight", 1.0)
        if 0.0 < weight < inf:
            return weight
        self.count_drop("range")
        return 1.0

    def read_step(self, step: Any) -> int | None:
        """A step number, or None where it was no whole number."""
        found, _ = self.split_by_device([("step", step)])
        number_ = found.get("step")
        if number_ is None:
            return None
        if number_.is_integer() and abs(number_) < MAX_STEP_NUMBER:
            return int(number_)
        self.count_drop("range")
        return None

    def split_metadata(
        self, facts: Mapping[str, Any]
    ) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
        """Facts told apart: numbers, tensors still on a device, and texts of bearable length."""
        texts = {name: fact[:_MAX_TEXT_CHARS] for name, fact in facts.items() if type(fact) is str}
        values, tensors = self.split_by_device(
            item for item in facts.items() if item[0] not in texts
        )
        return values, tensors, texts

    def _check_name(self, name: Any) -> None:
        if not is_valid_name(name):
            raise RejectedValueError("key")
        if name not in self.known_names:
            if len(self.known_names) >= MAX_NAMES:
                raise RejectedValueError("too_many_names")
            self.known_names.add(name)


def _schema_key(names: Collection[str], own_names: tuple[str, ...]) -> SchemaKey:
    """Names that come one at a time, as TensorBoard's do, take turns: each has its plan."""
    if len(names) == 1:
        name = next(iter(names))
        # Whatever else somebody took for a key is not to be asked for its hash.
        return (name if type(name) is str else 1), own_names
    return len(names), own_names
