"""Remark: one thing that a checkup looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How good it is."""

    OK = "ok"
    WARN = "note"
    """Worth knowing; nothing has to be done."""
    FAIL = "mend"
    """Something is, or will be, not watched or not told until somebody mends it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`subject` is what was looked at, `says` how it is; whatever is not well has a `remedy`."""

    grade: Grade
    subject: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.grade is Grade.OK) == bool(self.remedy):
            raise ValueError(f"{self.subject}: a remedy belongs to whatever is not well")


def ok(subject: str, message: str) -> CheckResult:
    """All is as it should be."""
    return CheckResult(Grade.OK, subject, message)


def warn(subject: str, message: str, remedy: str) -> CheckResult:
    """Worth knowing."""
    return CheckResult(Grade.WARN, subject, message, remedy)


def fail(subject: str, message: str, remedy: str) -> CheckResult:
    """Somebody has to do something."""
    return CheckResult(Grade.FAIL, subject, message, remedy)
