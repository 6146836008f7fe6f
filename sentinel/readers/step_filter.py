"""Counters: which of the step numbers in a log are the run's own."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_KEY_SETS = 256


@dataclass
class StepFilter:
    """Tells a run whose step goes back from a log in which two writers count for themselves.

    Rows of one kind, which is the set of their keys, come from one writer. A number below the last
    one only follows, as a step of the run, where it is below the last of its own kind too.
    """

    last_step: float | None = None
    last_step_by_keys: dict[frozenset[str], float] = field(default_factory=dict)

    def accepts(self, keys: frozenset[str], step: float) -> bool:
        """Whether the step is the run's; False if it is another writer's count."""
        own = self.last_step_by_keys.get(keys)
        if own is not None or len(self.last_step_by_keys) < MAX_KEY_SETS:
            self.last_step_by_keys[keys] = step
        if self.last_step is not None and step < self.last_step and (own is None or step >= own):
            return False
        self.last_step = step
        return True
