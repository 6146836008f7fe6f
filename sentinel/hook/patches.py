"""Patches: attributes replaced for the time of a run, and put back if they are still ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Patches:
    """What was replaced, newest last."""

    made: list[tuple[Any, str, Any, Any]] = field(default_factory=list)
    others: list[Callable[[], None]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to what `make` builds around the original."""
        original = owner.__dict__[name]
        ours = make(original)
        setattr(owner, name, ours)
        self.made.append((owner, name, original, ours))

    def also(self, undo: Callable[[], None]) -> None:
        """Something else to be undone."""
        self.others.append(undo)

    def undo(self) -> None:
        """Put everything back, except where somebody has patched over us since."""
        while self.made:
            owner, name, original, ours = self.made.pop()
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
        while self.others:
            self.others.pop()()
