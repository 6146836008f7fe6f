"""How ranks ended, and which of them ended by itself, so that the others followed.

When one rank dies, its peers lose their connection to it and raise, often before its process is
gone; then the launcher ends them all by SIGTERM. Only the first end is a cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from sentinel.model.record import COLLECTIVE_KEY, UNKNOWN_OUTCOME

STOP_SIGNALS = frozenset({"SIGTERM", "SIGHUP"})
"""Signals that ask a process to end: of schedulers, launchers and closed terminals."""
INTERRUPT_SIGNALS = frozenset({"SIGINT", "SIGQUIT"})
"""Signals of a user at the terminal."""

CONSEQUENCE_WINDOW_SECONDS = 5.0
"""An error of a connection may be recorded this long before the end that it follows from: a process
that dies closes its connections first, and may take seconds to release its GPU."""
SAME_FAILURE_SECONDS = 0.5
"""An error and a death within this time are one failure, and deaths by one signal are one event."""
UNKNOWN_STATUS_SECONDS = 0.3
"""A death of unknown kind this long after an error may be its cause; later, the launcher ended that
rank: it needs the process of the error to be gone first."""

CLOCK_ERROR_SECONDS = 1.0
"""By how much the order of ends on several nodes may be wrong."""
STOP_SIGNAL_KEY = "stop_signal"
"""Attribute of an end: the signal by which the whole run had been asked to end before."""
END_ATTRIBUTES = (
    "exception", "message", "location", "caused_by", "code", "signal", "oom_kill", "memory_limit",
    COLLECTIVE_KEY,
)  # fmt: skip
"""Attributes that describe an end, beside its outcome."""

_STOP_EXIT_CODES = frozenset({"129", "143"})
_CONSEQUENCE_EXCEPTIONS = frozenset({
    "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionResetError",
    "ConnectionAbortedError", "BrokenPipeError", "ChildFailedError", "ProcessExitedException",
    "ProcessRaisedException", "RendezvousConnectionError", "RendezvousClosedError",
})  # fmt: skip
_STOP_EXCEPTIONS = frozenset({"SIGTERMException", "SignalException"})
_CONSEQUENCE_WORDS = re.compile(
    r"connection (?:was )?(?:closed|reset|aborted) by|connection (?:lost|aborted)|socket closed|"
    r"broken pipe|\bnccl|\bgloo\b|process ?group|\bc10d\b|tcpstore|remote process exited|"
    r"collective operation timeout|waiting .*for (?:send|recv) operation",
    re.IGNORECASE,
)


class EndKind(IntEnum):
    """What an end can be the cause of: one of a lower kind explains those of higher kinds."""

    OWN = 0
    """By itself: an error of its own, an exit code, or a signal like SIGKILL or SIGSEGV."""
    ABORTED = 1
    """SIGABRT: an assertion, or a watchdog that misses a peer."""
    STOPPED = 2
    """Asked to end by a scheduler, a launcher or a user."""
    CONSEQUENCE = 3
    """An error of the connection to another rank."""


def is_connection_error(attributes: Mapping[str, str]) -> bool:
    """Whether a rank's exception only reports that another rank is gone.

    >>> is_connection_error({"exception": "RuntimeError", "message": "Connection closed by peer"})
    True
    >>> is_connection_error({"exception": "RuntimeError", "message": "bad sample in shard 7"})
    False
    """
    names = {attributes.get("exception", ""), attributes.get("caused_by", "").partition(":")[0]}
    if names & _CONSEQUENCE_EXCEPTIONS:
        return True
    texts = (attributes.get("message", ""), attributes.get("caused_by", ""))
    return any(map(_CONSEQUENCE_WORDS.search, texts))


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of ranks that ended alike, at the time `ended_at` in seconds.

    `attributes` are `outcome`, those of `END_ATTRIBUTES` that are known, and `STOP_SIGNAL_KEY`.
    `connection_error` is "yes" if the exception is one, as `is_connection_error` finds; its message
    may be left out here.
    """

    ranks: tuple[int, ...]
    ended_at: float
    attributes: Mapping[str, str]

    @property
    def outcome(self) -> str:
        """The outcome; "stopped" or "interrupted" for a signal that asks for it."""
        attributes = self.attributes
        outcome = attributes.get("outcome", "")
        if outcome in ("finished", "interrupted", UNKNOWN_OUTCOME):
            return outcome
        signal = attributes.get(STOP_SIGNAL_KEY, attributes.get("signal"))
        if signal in INTERRUPT_SIGNALS:
            return "interrupted"
        is_stopped = (
            signal in STOP_SIGNALS
            or attributes.get("code") in _STOP_EXIT_CODES
            or attributes.get("exception") in _STOP_EXCEPTIONS
        )
        return "stopped" if is_stopped else outcome

    @property
    def kind(self) -> EndKind:
        """What it can be the cause of."""
        outcome = self.outcome
        if outcome == "stopped":
            return EndKind.STOPPED
        if self.attributes.get("signal") == "SIGABRT":
            return EndKind.ABORTED
        if outcome == "exception" and (
            "connection_error" in self.attributes or is_connection_error(self.attributes)
        ):
            return EndKind.CONSEQUENCE
        return EndKind.OWN

    @property
    def is_status_known(self) -> bool:
        """Whether it is known how its process ended. Rank 0 knows of lost peers that they died."""
        if self.attributes.get("outcome") != "died":
            return True
        return not self.attributes.keys().isdisjoint(("signal", "code", COLLECTIVE_KEY))

    @property
    def signature(self) -> tuple[str, ...]:
        """Equal for ends that are one event on several ranks."""
        if self.outcome == "stopped":
            return ("stopped",)
        names = ("exception", "code", "signal", "location")
        return (self.outcome, *[self.attributes.get(name, "") for name in names])


def first_failure(
    ends: Iterable[RankEnd], clock_error_seconds: float = 0.0
) -> tuple[list[RankEnd], list[RankEnd]]:
    """The ends that are the cause, the decisive one first, and those that followed.

    Both are empty if no rank failed. `clock_error_seconds` is by how much the order of the times
    may be wrong.
    """
    failures = sorted(
        (each for each in ends if each.outcome not in ("finished", UNKNOWN_OUTCOME)),
        key=lambda each: (each.ended_at, each.kind),
    )
    if not failures:
        return [], []
    first = failures[0]
    for each in failures[1:]:
        if each.ended_at - first.ended_at <= _window(first, each) + clock_error_seconds:
            first = each
    causes = [first, *_same_event(first, failures, clock_error_seconds)]
    followers = [each for each in failures if not any(each is cause for cause in causes)]
    return causes, followers


def _window(earlier: RankEnd, later: RankEnd) -> float:
    """For how long after the earlier end the later one is still its cause; negative for never."""
    never = float("-inf")
    if not later.is_status_known:
        return UNKNOWN_STATUS_SECONDS if earlier.kind is EndKind.CONSEQUENCE else 0.0
    if later.kind is EndKind.OWN:
        if earlier.kind is EndKind.CONSEQUENCE:
            return CONSEQUENCE_WINDOW_SECONDS
        is_death_after_error = (
            later.attributes.get("outcome") == "died" and earlier.outcome == "exception"
        )
        is_weaker = earlier.kind is not EndKind.OWN
        return SAME_FAILURE_SECONDS if is_death_after_error or is_weaker else never
    return UNKNOWN_STATUS_SECONDS if later.kind < earlier.kind else never


def _same_event(
    first: RankEnd, failures: Sequence[RankEnd], clock_error_seconds: float
) -> list[RankEnd]:
    """The other ends that are the same event as `first`."""
    limit = SAME_FAILURE_SECONDS + clock_error_seconds
    if first.kind is EndKind.STOPPED:
        limit = float("inf")
    elif not first.is_status_known:
        limit = 0.0
    return [
        each
        for each in failures
        if each is not first
        and (
            each.signature == first.signature
            # Of a process that the launcher waits for at once, the signal is often not known.
            or (first.kind is EndKind.STOPPED and not each.is_status_known)
        )
        and abs(each.ended_at - first.ended_at) <= limit
    ]
