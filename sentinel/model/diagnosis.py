"""Diagnosis: what stands behind the incidents of a run, by name, with evidence and remedy.

A cause looks at the scene (what was found, what the run says of itself, where its signals stand)
and gives the clues that speak for it, or none. Each clue has a weight, the belief in the cause if
nothing else were known; clues are taken for independent, so that the confidence is a noisy-or,
1 - (1 - w1)(1 - w2)... The cause of highest confidence is named, if that reaches `NAMED`.

Source: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988, section 4.3.2 (noisy-or).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Protocol

from sentinel.model.finding import Severity

MIN_CONFIDENCE = 0.6
"""Confidence from which on a cause is named: below it the incidents speak for themselves."""


RESUMED_STEP_KEY = "resumed_at"
"""Fact: the first step of the run since it last began again."""


_CONFIDENCE_WORDS = ((0.9, "very likely"), (0.75, "likely"), (MIN_CONFIDENCE, "probably"))


@dataclass(frozen=True, slots=True)
class Symptom:
    """One incident, as a cause sees it; steps as in Incident. It came so many `times`."""

    detector: str
    severity: Severity
    onset_step: int
    opened_step: int
    summary: str
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    last_good_step: int | None = None
    rank: int | None = None
    occurrences: int = 1


@dataclass(frozen=True, slots=True)
class CaseContext:
    """What is known when a cause is asked.

    `signs` by detector, of each the one that began first. `facts` are the run's own words and
    settings, by name. `values` are the newest of each signal.
    """

    symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)

    def earliest_symptom(self, *detectors: str) -> Symptom | None:
        """What began first of what these detectors found."""
        found = [self.symptoms[name] for name in detectors if name in self.symptoms]
        return min(found, key=lambda sign: (sign.onset_step, sign.opened_step), default=None)

    def number(self, *names: str) -> float | None:
        """The first of these settings that the run told as a finite number."""
        told = (self.metadata.get(name) for name in names)
        found = (n for n in told if isinstance(n, float | int) and isfinite(n))
        return next((float(n) for n in found), None)

    def text(self, name: str) -> str:
        """What the run told by that name, in small letters; empty where it told nothing."""
        return str(self.metadata.get(name, "")).lower()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe in a cause; `step` is since when, where it is something that began."""

    weight: float
    text: str
    step: int | None = None

    @property
    def text_with_step(self) -> str:
        """The clue and since when.

        >>> Clue(0.5, "KL is 2 nats.", 286).dated
        'since step 286: KL is 2 nats.'
        """
        return self.text if self.step is None else f"since step {self.step}: {self.text}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The named cause of a case: `evidence` in the order it began, settings last.

    `last_good_step` is that of the last checkpoint before anything went wrong, where there is one.
    """

    cause: str
    title: str
    confidence: float
    severity: Severity | None
    evidence: tuple[Evidence, ...]
    remedy: str
    last_good_step: int | None = None

    @property
    def confidence_text(self) -> str:
        """The confidence in words, and as a number.

        >>> Diagnosis("storm", "storm", 0.826, None, (), "Stay in.").belief
        'likely, 83 %'
        """
        words = next(
            (word for least, word in _CONFIDENCE_WORDS if self.confidence >= least), "perhaps"
        )
        return f"{words}, {100 * self.confidence:.0f} %"


class Cause(Protocol):
    """Something that may stand behind incidents. Implementations hold no state.

    `title` names it in a few words. `explains` are the detectors whose incidents it may account
    for: two that one cause explains, of one run and close in time, are told as one. `severity` is
    how loud it is once it is named, where that may be louder than each incident by itself.
    """

    title: ClassVar[str]
    explains: ClassVar[frozenset[str]]
    severity: ClassVar[Severity | None]

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """What speaks for it; nothing where it does not apply."""
        ...

    def remedy(self, context: CaseContext) -> str:
        """What to do, by the names that the settings have in the framework in use."""
        ...
