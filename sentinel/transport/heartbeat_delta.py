"""News: what one TICK says that the last one did not; the next differs in a few words at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.model.record import Record

Words = Mapping[str, Any]


@dataclass
class News:
    """Either side of a correspondence, with what was last said in it: values and facts."""

    last: tuple[Words, Words] = field(default_factory=lambda: ({}, {}))

    def of(self, tick: Record) -> list[object]:
        """Values and facts; if these go by the names of the last, what differs, and True.

        What differs goes by its place among the names.
        """
        before, self.last = self.last, (dict(tick.values), dict(tick.facts))
        pairs = [*zip(self.last, before, strict=True)]
        if all([*new] == [*old] for new, old in pairs):
            return [*(_changed(new, old) for new, old in pairs), True]
        return [*self.last]

    def taken(self, values: Words, facts: Words, alike: object = False) -> tuple[Words, Words]:
        """Values and facts of a TICK of which `of` told this."""
        if alike is True:
            values, facts = map(_changed_by, self.last, (values, facts))
        self.last = values, facts
        return self.last


def _changed(new: Words, old: Words) -> dict[str, object]:
    # By how it is written: 0.0 is not -0.0, and NaN is itself.
    pairs = enumerate(zip(new.values(), old.values(), strict=True))
    return {str(at): told for at, (told, before) in pairs if repr(told) != repr(before)}


def _changed_by(old: Words, news: Words) -> Words:
    places = {str(at): name for at, name in enumerate(old)}
    return {**old, **{places[at]: told for at, told in news.items()}}
