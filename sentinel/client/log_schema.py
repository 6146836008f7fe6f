"""Cached schemas: how logs with the same names become packed records.

A prepared getter reads the values and a prepared struct packs them, both in C. A log of twenty
numbers then costs little more than copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from struct import Struct
from typing import Any

from sentinel.client.capture.scalars import is_valid_name, split_by_device
from sentinel.transport.record_codec import VALUES_HEADER_FORMAT, NameSchema, RecordEncoder

PLAIN_TYPES = frozenset({float, int})
"""Types that the struct packs. Exactly these: a subclass could run its own code."""
MAX_NAMES = 2048
"""Distinct names of one rank in one attempt."""
_MAX_SCHEMAS = 256
_MAX_TEXT_CHARS = 1024
MAX_STEP_NUMBER = 1 << 62
"""Exclusive limit of the absolute value of a step number."""

SchemaKey = tuple[int | str, tuple[str, ...]]
"""The number of logged names, or the only name; and the names captured with them."""


@dataclass(frozen=True, slots=True)
class LogSchema:
    """Captured names, logged names, and the record schema of both together.

    `pack_own` packs a record up to the captured values, `pack_logged` the logged values behind it.
    The last value of a repeated name counts, so a logged value wins over a captured one.
    """

    own_names: tuple[str, ...]
    logged_names: tuple[str, ...]
    name_schema: NameSchema
    duplicate_positions: tuple[int, ...]
    """Positions in `own_names` of names that are also logged."""
    fast_path_size: int
    """Number of logged names; -1 if this schema cannot take the fast path."""
    float_types: list[type]
    get_values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    pack_own: Callable[..., bytes]
    pack_logged: Callable[..., bytes]


@dataclass
class LogSchemaCache:
    """The schemas of recent logs, by size. `count_drop` counts values that are rejected."""

    encoder: RecordEncoder
    count_drop: Callable[[str], None]
    schemas: dict[SchemaKey, LogSchema] = field(default_factory=dict)
    known_names: set[str] = field(default_factory=set)

    def get_or_create(self, values: Mapping[str, Any], own_names: tuple[str, ...]) -> LogSchema:
        """The schema for these names, cached for the next log of that size."""
        names = tuple(values)
        cached = self.schemas.get(_schema_key(names, own_names))
        if cached is not None and cached.logged_names == names:
            return cached
        if len(self.schemas) >= _MAX_SCHEMAS:
            self.schemas.clear()
        duplicates = tuple(at for at, name in enumerate(own_names) if name in values)
        size = len(names) if len(names) > 1 and not duplicates else -1
        schema = LogSchema(
            own_names=own_names,
            logged_names=names,
            name_schema=self.encoder.schema_for((*own_names, *names)),
            duplicate_positions=duplicates,
            fast_path_size=size,
            float_types=[float] * len(names),
            get_values=itemgetter(*names) if size > 0 else tuple,
            pack_own=Struct(f"{VALUES_HEADER_FORMAT}{len(own_names)}d").pack,
            pack_logged=Struct(f"{len(names)}d").pack,
        )
        self.schemas[_schema_key(names, own_names)] = schema
        return schema

    def find_cached(
        self, values: Mapping[str, Any], own_names: tuple[str, ...]
    ) -> LogSchema | None:
        """The schema last created for a log of that size, or of that one name."""
        return self.schemas.get(_schema_key(values, own_names))

    def split_by_device(
        self, items: Iterable[tuple[Any, Any]]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Numbers, and tensors still on a device; everything else is dropped and counted."""
        return split_by_device(filter(self._accept_name, items), self.count_drop)

    def read_weight(self, value: Any) -> float:
        """The number of samples behind a log; 1 if `value` is not a positive number."""
        numbers, _ = self.split_by_device([("weight", value)])
        weight = numbers.get("weight", 1.0)
        if 0.0 < weight < inf:
            return weight
        self.count_drop("range")
        return 1.0

    def read_step(self, step: Any) -> int | None:
        """A step number, or None if `step` is not an integer within the limit."""
        numbers, _ = self.split_by_device([("step", step)])
        number = numbers.get("step")
        if number is None:
            return None
        if number.is_integer() and abs(number) < MAX_STEP_NUMBER:
            return int(number)
        self.count_drop("range")
        return None

    def split_attributes(
        self, attributes: Mapping[str, Any]
    ) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
        """Numbers, tensors still on a device, and texts, each cut to a maximum length."""
        texts = {
            name: text[:_MAX_TEXT_CHARS] for name, text in attributes.items() if type(text) is str
        }
        values, tensors = self.split_by_device(
            item for item in attributes.items() if item[0] not in texts
        )
        return values, tensors, texts

    def _accept_name(self, item: tuple[Any, Any]) -> bool:
        name = item[0]
        if not is_valid_name(name):
            self.count_drop("key")
            return False
        if name not in self.known_names:
            if len(self.known_names) >= MAX_NAMES:
                self.count_drop("too_many_names")
                return False
            self.known_names.add(name)
        return True


def _schema_key(names: Collection[str], own_names: tuple[str, ...]) -> SchemaKey:
    """Logs of a single name, as TensorBoard writes them, alternate: each name has its schema."""
    if len(names) == 1:
        name = next(iter(names))
        # An object used as a key may run code when it is hashed.
        return (name if type(name) is str else 1), own_names
    return len(names), own_names
