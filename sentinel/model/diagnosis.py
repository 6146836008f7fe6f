"""Diagnosis: what stands behind the incidents of a run, by name, with evidence and remedy.

A cause looks at the scene (what was found, what the run says of itself, where its signals stand)
and gives the clues that speak for it, or none. Each clue has a weight, the belief in the cause if
nothing else were known; clues are taken for independent, so that the confidence is a noisy-or,
1 - (1 - w1)(1 - w2)... The cause of highest confidence is named, if that reaches `NAMED`.

Source: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988, section 4.3.2 (noisy-or).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf, isfinite, prod
from typing import ClassVar, Protocol

from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

log = logging.getLogger(__name__)

MIN_CONFIDENCE = 0.6
"""Confidence from which on a cause is named: below it the incidents speak for themselves."""

MAX_CONFIDENCE = 0.99
"""Nothing that is read off a few signals is certain."""

RESUMED_STEP_KEY = "resumed_at"
"""Fact: the first step of the run since it last began again."""

ONSET_TOLERANCE_STEPS = 8
"""Steps by which the sign of a parent may seem to begin after that of its child: detectors differ
in how early they doubt."""

WEAK_KL_COEFFICIENT = 0.01
"""KL coefficient below which the term is weaker than what papers held with (0.02 to 0.04)."""

FAST_LEARNING_RATE = 1e-5
"""Learning rate above which a full fine-tuning by reward is fast."""

ADAPTER_LEARNING_RATE_FACTOR = 10.0
"""How much faster adapters may learn."""

_KL_COEFFICIENT_KEYS = ("beta", "kl_coef", "kl_loss_coef")

MAX_EVIDENCE_PER_CAUSE = 32
"""Clues of one cause that are looked at."""

MAX_TEXT_CHARS = 1000
"""Characters kept of one text of a cause: those of plug-ins may have no end."""

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


def symptom_evidence(symptom: Symptom | None, weight: float) -> Iterable[Evidence]:
    """An incident as a clue; nothing if there is none.

    >>> list(seen(None, 0.5))
    []
    """
    return () if symptom is None else (Evidence(weight, symptom.summary, symptom.onset_step),)


def began_first(
    symptom: Symptom, *others: Symptom | None, tolerance_steps: int = ONSET_TOLERANCE_STEPS
) -> bool:
    """Whether it began no later than any of the others, as far as can be told, by `later` steps.

    >>> kl, fall = Sign("kl_blowup", Severity.WARNING, 250, 262, ""), None
    >>> led(kl, fall)
    True
    """
    return all(
        other is None or symptom.onset_step <= other.onset_step + tolerance_steps
        for other in others
    )


def weak_kl_control_evidence(context: CaseContext) -> Iterable[Evidence]:
    """Settings that let a policy run from its reference, as clues."""
    beta = context.number(*_KL_COEFFICIENT_KEYS)
    if beta is not None and beta < WEAK_KL_COEFFICIENT:
        yield Evidence(0.3, f"The KL coefficient is {beta:g}, which hardly holds the policy.")
    rate = context.number("learning_rate") or context.values.get("learning_rate")
    fast = (
        ADAPTER_LEARNING_RATE_FACTOR * FAST_LEARNING_RATE
        if "peft" in context.metadata
        else FAST_LEARNING_RATE
    )
    if rate is not None and rate > fast:
        yield Evidence(0.2, f"The learning rate is {rate:g}, fast for training by reward.")


def stronger_kl_advice(context: CaseContext) -> str:
    """The KL coefficient as it should be, in words: "the KL coefficient (`beta`) 2 to ..."."""
    loss, reward = context.text("use_kl_loss"), context.text("use_kl_in_reward")
    if loss == "false" and reward != "true":
        # Its coefficient stands there, and does nothing.
        switch, term = (
            describe_setting(each, context.metadata) for each in ("KL loss", "KL coefficient")
        )
        return f"{switch} on and {term} at 0.04"
    inside = reward == "true" and loss != "true"
    term = describe_setting(
        "KL coefficient in the reward" if inside else "KL coefficient", context.metadata
    )
    none = context.number(*_KL_COEFFICIENT_KEYS) == 0.0
    return term + (" at 0.04 instead of 0" if none else " 2 to 5 times as high")


def low_learning_rate_evidence(context: CaseContext) -> Iterable[Evidence]:
    """A learning rate under a hundredth of what was declared, as a clue: little is learnt by it."""
    rate, full = context.values.get("learning_rate"), context.number("learning_rate") or 0.0
    if rate is not None and rate < 0.01 * full:
        yield Evidence(0.4, f"The learning rate is {rate:.3g}, of {full:g} that were declared.")


def diagnose(context: CaseContext, causes: Mapping[str, Cause]) -> Diagnosis | None:
    """The cause that most speaks for; None where none is believable. Never raises."""
    best: Diagnosis | None = None
    for name, cause in causes.items():
        try:
            found = _evaluate_cause(name, cause, context)
        except Exception:
            log.exception("Cause %s cannot be weighed", name)
            continue
        if found is not None and (best is None or found.confidence > best.confidence):
            best = found
    return best


def _evaluate_cause(name: str, cause: Cause, context: CaseContext) -> Diagnosis | None:
    told = (
        _validate_evidence(clue) for clue in islice(cause.evidence(context), MAX_EVIDENCE_PER_CAUSE)
    )
    clues = sorted(told, key=lambda clue: inf if clue.step is None else clue.step)
    confidence = min(MAX_CONFIDENCE, 1.0 - prod(1.0 - clue.weight for clue in clues))
    if confidence < MIN_CONFIDENCE:
        return None
    first = context.earliest_symptom(*_reported_detectors(cause, clues, context))
    good = None if first is None else first.last_good_step
    title, remedy = str(cause.title)[:MAX_TEXT_CHARS], str(cause.remedy(context))[:MAX_TEXT_CHARS]
    return Diagnosis(name, title, confidence, cause.severity, tuple(clues), remedy, good)


def _reported_detectors(
    cause: Cause, evidence: Iterable[Evidence], context: CaseContext
) -> Iterable[str]:
    """Detectors of what people read that it began with: not all that was ever noted."""
    quoted = {clue.step for clue in evidence}
    for name, sign in context.symptoms.items():
        loud = name in cause.explains and sign.severity is not Severity.INFO
        if loud or sign.onset_step in quoted:
            yield name


def _validate_evidence(evidence: Evidence) -> Evidence:
    """The clue as it can be stored and sent. Raises ValueError where it means nothing."""
    if not 0.0 <= evidence.weight <= 1.0:
        raise ValueError(f"a clue must weigh 0 to 1, and one weighs {evidence.weight}")
    step = None if evidence.step is None else int(evidence.step)
    return Evidence(float(evidence.weight), str(evidence.text)[:MAX_TEXT_CHARS], step)
