"""Remark: one thing that a checkup looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How good it is."""

    WELL = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    MEND = "mend"
    """Something is, or will be, not watched or not told until somebody mends it."""


@dataclass(frozen=True, slots=True)
class Remark:
    """`subject` is what was looked at, `says` how it is; whatever is not well has a `remedy`."""

    grade: Grade
    subject: str
    says: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.grade is Grade.WELL) == bool(self.remedy):
            raise ValueError(f"{self.subject}: a remedy belongs to whatever is not well")


def well(subject: str, says: str) -> Remark:
    """All is as it should be."""
    return Remark(Grade.WELL, subject, says)


def note(subject: str, says: str, remedy: str) -> Remark:
    """Worth knowing."""
    return Remark(Grade.NOTE, subject, says, remedy)


def mend(subject: str, says: str, remedy: str) -> Remark:
    """Somebody has to do something."""
    return Remark(Grade.MEND, subject, says, remedy)
