"""Result of one check of `sentinel doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """Worth knowing; monitoring and notifications work."""
    FAIL = "fail"
    """Something is not monitored, or a notification is not sent, until it is corrected."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check: what was checked, its state, and a remedy unless the grade is OK."""

    grade: Grade
    subject: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.grade is Grade.OK) == bool(self.remedy):
            raise ValueError(f"{self.subject}: a remedy is required unless the grade is OK")


def ok(subject: str, message: str) -> CheckResult:
    """A passed check."""
    return CheckResult(Grade.OK, subject, message)


def warn(subject: str, message: str, remedy: str) -> CheckResult:
    """A check with a warning."""
    return CheckResult(Grade.WARN, subject, message, remedy)


def fail(subject: str, message: str, remedy: str) -> CheckResult:
    """A failed check."""
    return CheckResult(Grade.FAIL, subject, message, remedy)
