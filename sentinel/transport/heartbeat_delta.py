"""News: what one TICK says that the last one did not; the next differs in a few words at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.model.record import Record

Fields = Mapping[str, Any]


@dataclass
class HeartbeatDelta:
    """Either side of a correspondence, with what was last said in it: values and facts."""

    last: tuple[Fields, Fields] = field(default_factory=lambda: ({}, {}))

    def encode(self, heartbeat: Record) -> list[object]:
        """Values and facts; if these go by the names of the last, what differs, and True.

        What differs goes by its place among the names.
        """
        before, self.last = self.last, (dict(heartbeat.values), dict(heartbeat.attributes))
        pairs = [*zip(self.last, before, strict=True)]
        if all([*new] == [*old] for new, old in pairs):
            return [*(_diff(new, old) for new, old in pairs), True]
        return [*self.last]

    def decode(
        self, values: Fields, facts: Fields, is_delta: object = False
    ) -> tuple[Fields, Fields]:
        """Values and facts of a TICK of which `of` told this."""
        if is_delta is True:
            values, facts = map(_apply_diff, self.last, (values, facts))
        self.last = values, facts
        return self.last


def _diff(new: Fields, old: Fields) -> dict[str, object]:
    # By how it is written: 0.0 is not -0.0, and NaN is itself.
    pairs = enumerate(zip(new.values(), old.values(), strict=True))
    return {str(at): told for at, (told, before) in pairs if repr(told) != repr(before)}


def _apply_diff(old: Fields, changes: Fields) -> Fields:
    places = {str(at): name for at, name in enumerate(old)}
    return {**old, **{places[at]: told for at, told in changes.items()}}
