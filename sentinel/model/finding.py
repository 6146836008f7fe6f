"""Findings, and the protocol of the detectors that make them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol

from sentinel.model.record import Event


class Severity(Enum):
    """Severity of a finding."""

    CRITICAL = "critical"
    """The run is failing or dead: page someone."""
    WARNING = "warning"
    """Notify the channel: investigate within a day."""
    INFO = "info"
    """Show it on the dashboard; no notification."""

    @property
    def order(self) -> int:
        """0 for the most severe; larger is less severe."""
        return _SEVERITY_ORDER[self]


_SEVERITY_ORDER = {severity: order for order, severity in enumerate(Severity)}


class Scope(Enum):
    """What a detector judges: how long its state and its incidents hold."""

    STAGE = 0
    """Levels, which start anew with each stage of a training."""
    TRAINING = 1
    """What is right or wrong in any stage of one training."""
    PROCESS = 2
    """Processes, nodes, disks and GPUs, which go on when another training begins."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a detector found in a record.

    `summary` is one sentence with values and units; `evidence` holds the values that decided.
    `severity` overrides the detector's own. `onset_step` is the step at which the problem began, as
    far as the detector knows; `onset_range` the earliest and the latest step at which it can have
    begun. `rank` is the rank that caused it, if one did. `signal` is the signal that shows it, if
    that is not always the detector's. `threshold` is as that of Clear. `remedy` is in place of the
    detector's.
    """

    summary: str
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    severity: Severity | None = None
    onset_step: int | None = None
    rank: int | None = None
    onset_range: tuple[int, int] | None = None
    threshold: float | None = None
    signal: str = ""
    remedy: str | None = None


# Not frozen: some detectors create one per record, and a frozen one takes three times as long.
@dataclass(slots=True, unsafe_hash=True)
class Clear:
    """The detector evaluated the record and found no problem.

    `threshold` is the value of the detector's signal, in its unit, from which on it would find one;
    None if unknown.
    `withdraws` is whether an earlier finding proved to be wrong, so that its incident ends at once.
    """

    threshold: float | None = field(default=None, compare=False)
    withdraws: bool = field(default=False, compare=False)


CLEAR = Clear()
"""The Clear of a detector that knows no threshold; the cheapest output."""

DetectorOutput = Finding | Clear | None
"""None is no evidence (warm-up, NaN, no data): it neither opens nor resolves an incident."""


class Detector(Protocol):
    """Evaluates the combined records of one run, one at a time.

    Implementations are dataclasses. Their fields are the settings, each named in backticks in the
    module docstring, which has the paragraphs Formula, Units, Source and Defaults. What is declared
    below is a class attribute: without an annotation, it is no field. A detector
    receives the records whose values contain all of `needs`; with an empty `needs`, every record.
    It uses no clock (`record.time` is the time) and does no input or output. Its state is in plain
    attributes: numbers, strings, None, lists, dicts, tuples, deques, and objects of
    `sentinel.stats`, so that it can be stored and restored when an agent is restarted. A class
    attribute `reads`, a frozenset, names signals beside `needs` and `signal` that it can judge
    alone; what no enabled detector reads is shown as not monitored.

    A class attribute `events`, a frozenset, names the events whose records it receives; without it,
    it receives those of all events. A class attribute `steps_with`, a frozenset of signals, limits
    the steps among them to those that have one of these signals; one that ends in "/" is the
    beginning of names. A class attribute `scope` is what
    it judges, levels by default: where that ends, another instance takes its place, which first
    gets a START with the metadata of the run.

    `update(record)` is the method that evaluates a record. A detector with a class attribute
    `baselines`, a frozenset of signals, has `update(record, baselines)` instead: it gets the
    `sentinel.stats.shared_baselines.SharedBaselines` of the run, in which those of these signals
    include the value of the record.
    """

    needs: ClassVar[frozenset[str]]
    signal: ClassVar[str]
    severity: ClassVar[Severity]
    remedy: ClassVar[str]

    @property
    def update(self) -> Callable[..., DetectorOutput]: ...


class DetectorDefaults:
    """What most detectors declare: every record, and problems that are warnings."""

    needs: ClassVar[frozenset[str]] = frozenset()
    severity: ClassVar[Severity] = Severity.WARNING


def detector_title(detector: Detector | type[Detector]) -> str:
    """What the detector finds, as a noun phrase: the docstring of its module up to the colon.

    Empty if the module has no such docstring.
    """
    module = sys.modules.get(type(detector).__module__) if not isinstance(detector, type) else None
    module = sys.modules.get(detector.__module__) if module is None else module
    title, colon, _ = (getattr(module, "__doc__", None) or "").partition(":")
    return title.strip() if colon and "\n" not in title else ""


def detector_scope(detector: Detector | type[Detector]) -> Scope:
    """What that detector judges; levels unless it declares something else."""
    scope: Scope = getattr(detector, "scope", Scope.STAGE)
    return scope


def receives(detector: Detector | type[Detector], event: Event, names: AbstractSet[str]) -> bool:
    """Whether that detector receives the records of an event with values of these names."""
    if not detector.needs <= names:
        return False
    # A detector may have a setting or a state of these names, which declares nothing.
    kind = detector if isinstance(detector, type) else type(detector)
    events, steps_with = getattr(kind, "events", None), getattr(kind, "steps_with", None)
    if isinstance(events, frozenset) and event not in events:
        return False
    if isinstance(steps_with, frozenset) and event is Event.STEP:
        prefixes = tuple(name for name in steps_with if name.endswith("/"))
        return not steps_with.isdisjoint(names) or any(x.startswith(prefixes) for x in names)
    return True


def wanted_baselines(detector: Detector | type[Detector]) -> frozenset[str]:
    """Signals whose baselines `update` of that detector takes; empty if it takes none."""
    wanted: frozenset[str] = getattr(detector, "baselines", frozenset())
    return wanted
