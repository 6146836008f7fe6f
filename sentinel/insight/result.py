"""What the results of measurements have in common: plain data that JSON can represent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from sentinel.model.json_safe import finite_values


@dataclass(frozen=True, slots=True)
class Result:
    """A dataclass whose fields are numbers, texts, lists and dicts of these."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; numbers that are not finite become None."""
        values: dict[str, Any] = finite_values(asdict(self))
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result whose `to_json` returned `data`. Keys that are not known are ignored."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
