"""Counters: which of the step numbers in a log are the run's own."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_KINDS = 256


@dataclass
class Counters:
    """Tells a run whose step goes back from a log in which two writers count for themselves.

    Rows of one kind, which is the set of their keys, come from one writer. A number below the last
    one only follows, as a step of the run, where it is below the last of its own kind too.
    """

    last: float | None = None
    by_kind: dict[frozenset[str], float] = field(default_factory=dict)

    def follows(self, kind: frozenset[str], step: float) -> bool:
        """Whether the step is the run's; False if it is another writer's count."""
        own = self.by_kind.get(kind)
        if own is not None or len(self.by_kind) < MOST_KINDS:
            self.by_kind[kind] = step
        if self.last is not None and step < self.last and (own is None or step >= own):
            return False
        self.last = step
        return True
