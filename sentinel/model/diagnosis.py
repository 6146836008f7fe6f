"""Diagnoses: the probable cause of a case, with evidence and remedy; and the protocol of causes.

A cause receives the context of a case (its symptoms, the metadata of the run, the newest values of
its signals) and returns the evidence for itself, or none. The weight of a piece of evidence is the
probability of the cause given only that piece. Pieces are assumed independent, so the confidence is
a noisy-or, 1 - (1 - w1)(1 - w2)... A cause that an observation contradicts has none. The cause of
the highest confidence is reported if it reaches `MIN_CONFIDENCE`; otherwise the
`MAX_POSSIBLE_CAUSES` of the highest confidence are possible causes.

Source: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988, section 4.3.2 (noisy-or).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Protocol

from sentinel.model.evidence_text import capitalized
from sentinel.model.finding import Severity

MIN_CONFIDENCE = 0.6
"""Lowest confidence at which a cause is reported."""

MIN_POSSIBLE_CONFIDENCE, MAX_POSSIBLE_CAUSES = 0.2, 2
"""Lowest confidence of a possible cause, and how many a case without a reported cause has."""


RESUMED_STEP_KEY = "resumed_at"
"""Metadata key: the first step of the run after its last restart."""


MAX_EFFECT_DELAY_POINTS = 8
"""Logged values after an incident by which its effects begin."""

_INFO = Severity.INFO.order

_CONFIDENCE_WORDS = ((0.9, "very likely"), (0.75, "likely"), (MIN_CONFIDENCE, "probably"))


@dataclass(frozen=True, slots=True)
class Symptom:
    """The incidents of one detector, as a cause sees them; steps are those of the first.

    `onset_range` are the earliest and the latest step at which the first can have begun; None is
    anywhere from its onset to its opening. `incident` is the name of the first. `is_over` is
    whether all of them have cleared.
    """

    detector: str
    severity: Severity
    onset_step: int
    opened_step: int
    summary: str
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    last_good_step: int | None = None
    rank: int | None = None
    occurrences: int = 1
    onset_range: tuple[int, int] | None = None
    incident: str = ""
    is_over: bool = False
    remedy: str = ""

    @property
    def earliest_onset(self) -> int:
        """The earliest step at which it can have begun."""
        return self.onset_step if self.onset_range is None else self.onset_range[0]

    @property
    def latest_onset(self) -> int:
        """The latest step at which it can have begun."""
        return self.opened_step if self.onset_range is None else self.onset_range[1]

    def can_follow(self, other: Symptom, max_delay_steps: float) -> bool:
        """Whether it can have begun with the onset of `other`, or by that many steps after it.

        >>> nan = Symptom("nan_or_inf", Severity.CRITICAL, 250, 250, "")
        >>> long = Symptom("truncation", Severity.WARNING, 251, 256, "", onset_range=(247, 255))
        >>> long.can_follow(nan, 8), nan.can_follow(long, 8)
        (True, False)
        """
        onset = other.onset_step
        return self.latest_onset >= onset and self.earliest_onset <= onset + max_delay_steps


@dataclass(frozen=True, slots=True)
class SignalRange:
    """All finite values of a signal in the present training: their number and extremes."""

    first_step: int
    count: int
    zeros: int
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class CaseContext:
    """What a cause can use to explain a case.

    `symptoms` are by detector, and so are `other_symptoms`, of other cases of the run. `metadata`
    are the settings of the run by name. `values` are the newest value of each signal, `history` the
    newest finite values of some signals with their steps, `steps_per_point` the usual number of
    steps from one logged value to the next, and `checkpoint_steps` the steps of the checkpoints
    that are known, in the order of their creation. `ranges` are of the same signals as `history`.
    """

    symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    other_symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    history: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    steps_per_point: float = 1.0
    checkpoint_steps: Sequence[int] = ()
    ranges: Mapping[str, SignalRange] = field(default_factory=dict)

    def earliest(self, *detectors: str) -> Symptom | None:
        """The symptom with the earliest onset among those of these detectors."""
        symptoms = [self.symptoms[name] for name in detectors if name in self.symptoms]
        return min(symptoms, key=lambda each: (each.onset_step, each.opened_step), default=None)

    def earliest_in_run(self, *detectors: str) -> Symptom | None:
        """As `earliest`, also among the symptoms of other cases."""
        found = (CaseContext(self.other_symptoms).earliest(*detectors), self.earliest(*detectors))
        symptoms = [symptom for symptom in found if symptom is not None]
        return min(symptoms, key=lambda each: each.onset_step, default=None)

    def number(self, *names: str) -> float | None:
        """The first of these settings that is a finite number."""
        values = (self.metadata.get(name) for name in names)
        numbers = (n for n in values if isinstance(n, float | int) and isfinite(n))
        return next((float(n) for n in numbers), None)

    def text(self, name: str) -> str:
        """The metadata of that name in lower case; empty if there is none."""
        return str(self.metadata.get(name, "")).lower()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A piece of evidence for a cause; `step` is its onset, if it has one.

    `incident` is the name of the incident that begins at that step, if it is one: the step follows
    the estimate of its onset.
    """

    weight: float
    text: str
    step: int | None = None
    incident: str = ""

    def to_dict(self) -> dict[str, float | str | int | None]:
        """Weight, text and step, as every output in JSON has them."""
        return {"weight": self.weight, "text": self.text, "step": self.step}

    @property
    def text_with_step(self) -> str:
        """The text, with the step of its onset.

        >>> Evidence(0.5, "KL is 2 nats.", 286).text_with_step
        'since step 286: KL is 2 nats.'
        """
        return self.text if self.step is None else f"since step {self.step}: {self.text}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The probable cause of a case; `evidence` is in the order of onset, settings last.

    `onset_step` is the earliest onset of what it explains, None if nothing of that has one,
    `onset_incident` the name of the incident that begins there, empty if it is none, and
    `last_good_step` the step of the last checkpoint before it, if there is one.
    """

    cause: str
    title: str
    confidence: float
    severity: Severity | None
    evidence: tuple[Evidence, ...]
    remedy: str
    last_good_step: int | None = None
    onset_step: int | None = None
    onset_incident: str = ""

    @property
    def confidence_text(self) -> str:
        """The confidence in words and in percent.

        >>> Diagnosis("storm", "storm", 0.826, None, (), "Stay in.").confidence_text
        'likely, 83 %'
        """
        words = next(
            (word for lowest, word in _CONFIDENCE_WORDS if self.confidence >= lowest), "perhaps"
        )
        return f"{words}, {100 * self.confidence:.0f} %"


@dataclass(frozen=True, slots=True)
class PossibleCause:
    """A cause that fits, with too little evidence; `sign` is the clause that would confirm it."""

    cause: str
    title: str
    confidence: float
    sign: str = ""


def describe_possible_causes(causes: Sequence[PossibleCause]) -> list[str]:
    """Which causes fit, and what would tell them apart; empty without causes.

    >>> storm = PossibleCause("storm", "storm", 0.45, "the windows shake")
    >>> describe_possible_causes([storm, PossibleCause("war", "war", 0.3, "there is smoke")])
    ['Possible causes: storm (45 %) or war (30 %).', 'Storm is confirmed if the windows shake.', \
'War is confirmed if there is smoke.']
    """
    if not causes:
        return []
    names = " or ".join(f"{each.title} ({100 * each.confidence:.0f} %)" for each in causes)
    signs = [
        f"{capitalized(each.title)} is confirmed if {each.sign}." for each in causes if each.sign
    ]
    return [f"Possible cause{'s' if len(causes) > 1 else ''}: {names}.", *signs]


class Cause(Protocol):
    """A possible common cause of incidents. Implementations hold no state.

    `title` is a short noun phrase. `explains` are the detectors whose incidents it can explain: two
    such incidents of one run, close in time, are one case. `severity` is the lowest severity of a
    case with this cause; None leaves it to the incidents. Optional parts are those that
    `effects_of`, `sign_of`, `suggestion_for` and `contradictions_of` read.
    """

    title: ClassVar[str]
    explains: ClassVar[frozenset[str]]
    severity: ClassVar[Severity | None]

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The evidence for this cause; empty if an observation that it needs is missing."""
        ...

    def remedy(self, context: CaseContext) -> str:
        """What to do, with the setting names of the framework in use."""
        ...


def effects_of(cause: Cause) -> frozenset[str]:
    """The detectors whose incidents follow from those that the cause explains.

    An optional class attribute `effects`. Such an incident is of one case with an incident that the
    cause explains if it begins with it, or up to `MAX_EFFECT_DELAY_POINTS` later.
    """
    effects: frozenset[str] = getattr(cause, "effects", frozenset())
    return effects


def detectors_of(cause: Cause) -> frozenset[str]:
    """The detectors whose incidents the cause explains, directly or as effects."""
    return cause.explains | effects_of(cause)


def sign_of(cause: Cause) -> str:
    """The optional class attribute `sign`: what confirms the cause, as a clause after "if"."""
    return str(getattr(cause, "sign", ""))


def suggestion_for(cause: Cause, context: CaseContext) -> float:
    """The confidence in the cause from what suggests it, below `MIN_CONFIDENCE`; 0 if nothing does.

    The optional class attribute `suggested_by` has a confidence for each detector whose incident
    above severity info makes the cause possible without its evidence.
    """
    suggested_by: Mapping[str, float] = getattr(cause, "suggested_by", {})
    found = (context.symptoms.get(name) for name in suggested_by)
    return max(
        (suggested_by[each.detector] for each in found if each and each.severity.order < _INFO),
        default=0.0,
    )


def contradictions_of(cause: Cause, context: CaseContext) -> Iterator[str]:
    """The observations that exclude the cause, however much evidence it has, as sentences.

    They are the incidents above severity info of the detectors in the optional class attribute
    `excluded_by`, and what the optional method `contradictions(context)` yields.
    """
    for name in sorted(getattr(cause, "excluded_by", ())):
        symptom = context.symptoms.get(name)
        if symptom is not None and symptom.severity is not Severity.INFO:
            yield symptom.summary
    find = getattr(cause, "contradictions", None)
    if find is not None:
        yield from find(context)
