"""Finding: one detector's sentence about one record, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol

from sentinel.model.record import Record


class Severity(Enum):
    """How loud a finding is."""

    CRITICAL = "critical"
    """Wake somebody: the run is sick or dead."""
    WARNING = "warning"
    """Tell the channel: look at it today."""
    INFO = "info"
    """Put it on the dashboard."""

    @property
    def order(self) -> int:
        """0 for the loudest, growing with quiet."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong.

    `summary` is one sentence with its numbers and units; `evidence` holds the very numbers that
    decided. `severity` overrides the detector's own. `onset_step` is where it began, as far as the
    detector can tell; `rank` is the culprit, where there is one.
    """

    summary: str
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    severity: Severity | None = None
    onset_step: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """The detector looked, and all is well."""


DetectorOutput = Finding | Clear | None
"""None is no opinion (warming up, not a number, nothing to see): it neither opens nor closes."""


class Detector(Protocol):
    """Looks at the records of one run, one at a time, and gives its opinion of each.

    Implementations are dataclasses. Their fields are the knobs, each named in backticks in the
    module docstring, which has the paragraphs Formula, Units, Source and Defaults. A detector sees
    the run's combined records whose values contain all of `needs`; with an empty `needs` it sees
    every event. It holds no clock (`record.time` is the time), does no input or output, and keeps
    its state in plain attributes: numbers, strings, None, lists, dicts, tuples, deques, and objects
    of `sentinel.stats`, so that an agent that was killed can go on where it was.
    """

    needs: ClassVar[frozenset[str]]
    signal: ClassVar[str]
    severity: ClassVar[Severity]
    remedy: ClassVar[str]

    def update(self, record: Record) -> DetectorOutput: ...
