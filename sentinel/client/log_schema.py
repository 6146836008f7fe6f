"""Cached schemas: how logs with the same names become packed records.

A prepared getter reads the values and a prepared struct packs them, both in C. A log of twenty
numbers then costs little more than copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from operator import countOf, itemgetter
from typing import Any

from sentinel.client.capture.scalars import (
    PACKED_TYPES,
    REJECTED_TYPES,
    is_valid_name,
    number_or_reason,
    read_host_numbers,
)
from sentinel.transport.record_codec import NameSchema, RecordEncoder

MAX_NAMES = 2048
"""Distinct names of one rank in one attempt."""
_MAX_SCHEMAS = 256
_MAX_TEXT_CHARS = 1024
MAX_STEP_NUMBER = 1 << 62
"""Exclusive limit of the absolute value of a step number."""

_KEY_COUNTS = (1, 6, 11, 22, 43, 86, 171, 342, 683)
"""For each size of a dictionary, up to 1,365 keys, the least number of its keys."""
PLAIN_SIZES = frozenset(
    {dict.fromkeys(map(str, range(count))).__sizeof__() for count in _KEY_COUNTS}
).difference({dict.fromkeys(range(count)).__sizeof__() for count in _KEY_COUNTS})
"""Sizes that only dictionaries of plain texts have. CPython stores the hashes of the keys unless
all of them are such texts, and keys apart from values, as `vars` may return them, only if they are.
"""

SchemaKey = tuple[tuple[str, ...], frozenset[str]]
"""The names captured with a log, and the logged names. Their order is that of the first log."""


@dataclass(slots=True, eq=False)
class LogSchema:
    """Captured names, logged names, and the record schema of both together.

    The last value of a repeated name counts, so a logged value wins over a captured one.
    """

    own_names: tuple[str, ...]
    name_schema: NameSchema
    duplicate_positions: tuple[int, ...]
    """Positions in `own_names` of names that are also logged."""
    logged_count: int
    get_values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Reads the values, those that are rejected last."""
    types: list[type]
    """The types of the last values that were packed as they are."""
    rejected_count: int = 0
    """Values that are rejected for their types."""
    successor: LogSchema = field(init=False)
    """The schema of the log that followed the last one of this schema: logs come in turns."""

    def __post_init__(self) -> None:
        self.successor = self

    def packable(self, values: tuple[Any, ...], types: list[type]) -> tuple[float, ...] | None:
        """The values, of these types, as the struct packs them; None if one is no host number."""
        if self.rejected_count:
            packed = len(values) - self.rejected_count
            if not REJECTED_TYPES.issuperset(types[packed:]):
                return None
            values, types = values[:packed], types[:packed]
        if PACKED_TYPES.issuperset(types):
            self.types = types
            return values
        return read_host_numbers(values)

    def is_replaceable(self, own_values: Sequence[float]) -> bool:
        """Whether logged values may replace the captured ones of the same names.

        A framework may show a filtered value: a captured one that is not finite wins.
        """
        return all(isfinite(own_values[at]) for at in self.duplicate_positions)


@dataclass
class LogSchemaCache:
    """The schemas of recent logs, by names. `count_drop` counts values that are rejected."""

    encoder: RecordEncoder
    count_drop: Callable[[str], None]
    schemas: dict[SchemaKey, LogSchema] = field(default_factory=dict)
    rejecting_schemas: dict[SchemaKey, LogSchema] = field(default_factory=dict)
    """Those of the last logs of these names of which some values were rejected for their types."""
    known_names: set[str] = field(default_factory=set)

    def get_or_create(self, values: Mapping[str, Any], own_names: tuple[str, ...]) -> LogSchema:
        """The schema for these names, cached for the next log of them."""
        cached = self.find_cached(values, own_names)
        if cached is not None:
            return cached
        if len(self.schemas) >= _MAX_SCHEMAS:
            self.schemas.clear()
        names = tuple(values)
        schema = LogSchema(
            own_names=own_names,
            name_schema=self.encoder.schema_for((*own_names, *names)),
            duplicate_positions=tuple(at for at, name in enumerate(own_names) if name in values),
            logged_count=len(names),
            get_values=_values_getter(names),
            types=[float] * len(names),
        )
        self.schemas[own_names, frozenset(values)] = schema
        return schema

    def cache_rejecting(self, schema: LogSchema, values: Mapping[str, Any]) -> None:
        """Cache the schema of a log with plain names, of which it has those not rejected."""
        packed = schema.name_schema.names[len(schema.own_names) :]
        packed_names = frozenset(packed)
        rejected = [name for name in values if name not in packed_names]
        if all(n in self.known_names and type(values[n]) in REJECTED_TYPES for n in rejected):
            if len(self.rejecting_schemas) >= _MAX_SCHEMAS:
                self.rejecting_schemas.clear()
            self.rejecting_schemas[schema.own_names, frozenset(values)] = replace(
                schema,
                logged_count=len(values),
                get_values=_values_getter((*packed, *rejected)),
                rejected_count=len(rejected),
            )

    def find_cached(
        self, values: Mapping[str, Any], own_names: tuple[str, ...]
    ) -> LogSchema | None:
        """The schema of these names, which are plain texts, if it is cached."""
        # Made of a dictionary, the set takes over the hashes of the user's keys.
        return self.schemas.get((own_names, frozenset(values)))

    def find_rejecting(
        self, values: Mapping[str, Any], own_names: tuple[str, ...]
    ) -> LogSchema | None:
        """As `find_cached`, for a log of which some values are rejected for their types."""
        return self.rejecting_schemas.get((own_names, frozenset(values)))

    def split_by_device(
        self, items: Iterable[tuple[Any, Any]]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Numbers, and tensors still on a device; everything else is dropped and counted."""
        numbers: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        known_names, count_drop = self.known_names, self.count_drop
        for name, value in items:
            # An object that is used as a name may run code when it is hashed.
            if (type(name) is not str or name not in known_names) and not self._accept_name(name):
                continue
            number = value if type(value) is float else number_or_reason(value)
            if type(number) is float:
                numbers[name] = number
            elif type(number) is str:
                count_drop(number)
            else:
                tensors[name] = number
        return numbers, tensors

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
        texts: dict[str, str] = {}
        others: list[tuple[Any, Any]] = []
        for name, value in attributes.items():
            if type(name) is str and type(value) is str:
                texts[name] = value[:_MAX_TEXT_CHARS]
            else:
                others.append((name, value))
        return (*self.split_by_device(others), texts)

    def _accept_name(self, name: Any) -> bool:
        """Whether values of a name that is not known are recorded; a name dropped is counted."""
        if not is_valid_name(name):
            self.count_drop("key")
            return False
        if len(self.known_names) >= MAX_NAMES:
            self.count_drop("too_many_names")
            return False
        self.known_names.add(name)
        return True


def has_plain_keys(values: dict[Any, Any]) -> bool:
    """Whether all keys are plain texts: another key may run code where it is compared."""
    return values.__sizeof__() in PLAIN_SIZES or countOf(map(type, values), str) == len(values)


def _values_getter(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that returns the values of these names, or raises KeyError."""
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        (name,) = names
        return lambda values: (values[name],)
    return lambda _: ()
