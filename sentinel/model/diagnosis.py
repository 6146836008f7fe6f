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
from sentinel.signals.setting_names import lever

log = logging.getLogger(__name__)

NAMED = 0.6
"""Confidence from which on a cause is named: below it the incidents speak for themselves."""

MOST = 0.99
"""Nothing that is read off a few signals is certain."""

RESUMED = "resumed_at"
"""Fact: the first step of the run since it last began again."""

LATER = 8
"""Steps by which the sign of a parent may seem to begin after that of its child: detectors differ
in how early they doubt."""

WEAK = 0.01
"""KL coefficient below which the term is weaker than what papers held with (0.02 to 0.04)."""

FAST = 1e-5
"""Learning rate above which a full fine-tuning by reward is fast."""

ADAPTERS = 10.0
"""How much faster adapters may learn."""

_KL_COEFFICIENT = ("beta", "kl_coef", "kl_loss_coef")

MOST_CLUES = 32
"""Clues of one cause that are looked at."""

LONGEST_TEXT = 1000
"""Characters kept of one text of a cause: those of plug-ins may have no end."""

_BELIEFS = ((0.9, "very likely"), (0.75, "likely"), (NAMED, "probably"))


@dataclass(frozen=True, slots=True)
class Sign:
    """One incident, as a cause sees it; steps as in Incident. It came so many `times`."""

    detector: str
    severity: Severity
    onset_step: int
    opened_step: int
    summary: str
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    last_good_step: int | None = None
    rank: int | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known when a cause is asked.

    `signs` by detector, of each the one that began first. `facts` are the run's own words and
    settings, by name. `values` are the newest of each signal.
    """

    signs: Mapping[str, Sign] = field(default_factory=dict)
    facts: Mapping[str, str | float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)

    def first(self, *detectors: str) -> Sign | None:
        """What began first of what these detectors found."""
        found = [self.signs[name] for name in detectors if name in self.signs]
        return min(found, key=lambda sign: (sign.onset_step, sign.opened_step), default=None)

    def number(self, *names: str) -> float | None:
        """The first of these settings that the run told as a finite number."""
        told = (self.facts.get(name) for name in names)
        found = (n for n in told if isinstance(n, float | int) and isfinite(n))
        return next((float(n) for n in found), None)

    def text(self, name: str) -> str:
        """What the run told by that name, in small letters; empty where it told nothing."""
        return str(self.facts.get(name, "")).lower()


@dataclass(frozen=True, slots=True)
class Clue:
    """One reason to believe in a cause; `step` is since when, where it is something that began."""

    weight: float
    text: str
    step: int | None = None

    @property
    def dated(self) -> str:
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
    evidence: tuple[Clue, ...]
    remedy: str
    last_good_step: int | None = None

    @property
    def belief(self) -> str:
        """The confidence in words, and as a number.

        >>> Diagnosis("storm", "storm", 0.826, None, (), "Stay in.").belief
        'likely, 83 %'
        """
        words = next((word for least, word in _BELIEFS if self.confidence >= least), "perhaps")
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

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """What speaks for it; nothing where it does not apply."""
        ...

    def remedy(self, scene: Scene) -> str:
        """What to do, by the names that the settings have in the framework in use."""
        ...


def seen(sign: Sign | None, weight: float) -> Iterable[Clue]:
    """An incident as a clue; nothing if there is none.

    >>> list(seen(None, 0.5))
    []
    """
    return () if sign is None else (Clue(weight, sign.summary, sign.onset_step),)


def led(sign: Sign, *others: Sign | None, later: int = LATER) -> bool:
    """Whether it began no later than any of the others, as far as can be told, by `later` steps.

    >>> kl, fall = Sign("kl_blowup", Severity.WARNING, 250, 262, ""), None
    >>> led(kl, fall)
    True
    """
    return all(other is None or sign.onset_step <= other.onset_step + later for other in others)


def loosely_held(scene: Scene) -> Iterable[Clue]:
    """Settings that let a policy run from its reference, as clues."""
    beta = scene.number(*_KL_COEFFICIENT)
    if beta is not None and beta < WEAK:
        yield Clue(0.3, f"The KL coefficient is {beta:g}, which hardly holds the policy.")
    rate = scene.number("learning_rate") or scene.values.get("learning_rate")
    fast = ADAPTERS * FAST if "peft" in scene.facts else FAST
    if rate is not None and rate > fast:
        yield Clue(0.2, f"The learning rate is {rate:g}, fast for training by reward.")


def held_tighter(scene: Scene) -> str:
    """The KL coefficient as it should be, in words: "the KL coefficient (`beta`) 2 to ..."."""
    loss, reward = scene.text("use_kl_loss"), scene.text("use_kl_in_reward")
    if loss == "false" and reward != "true":
        # Its coefficient stands there, and does nothing.
        switch, term = (lever(each, scene.facts) for each in ("KL loss", "KL coefficient"))
        return f"{switch} on and {term} at 0.04"
    inside = reward == "true" and loss != "true"
    term = lever("KL coefficient in the reward" if inside else "KL coefficient", scene.facts)
    none = scene.number(*_KL_COEFFICIENT) == 0.0
    return term + (" at 0.04 instead of 0" if none else " 2 to 5 times as high")


def next_to_none(scene: Scene) -> Iterable[Clue]:
    """A learning rate under a hundredth of what was declared, as a clue: little is learnt by it."""
    rate, full = scene.values.get("learning_rate"), scene.number("learning_rate") or 0.0
    if rate is not None and rate < 0.01 * full:
        yield Clue(0.4, f"The learning rate is {rate:.3g}, of {full:g} that were declared.")


def diagnose(scene: Scene, causes: Mapping[str, Cause]) -> Diagnosis | None:
    """The cause that most speaks for; None where none is believable. Never raises."""
    best: Diagnosis | None = None
    for name, cause in causes.items():
        try:
            found = _weighed(name, cause, scene)
        except Exception:
            log.exception("Cause %s cannot be weighed", name)
            continue
        if found is not None and (best is None or found.confidence > best.confidence):
            best = found
    return best


def _weighed(name: str, cause: Cause, scene: Scene) -> Diagnosis | None:
    told = (_sound(clue) for clue in islice(cause.clues(scene), MOST_CLUES))
    clues = sorted(told, key=lambda clue: inf if clue.step is None else clue.step)
    confidence = min(MOST, 1.0 - prod(1.0 - clue.weight for clue in clues))
    if confidence < NAMED:
        return None
    first = scene.first(*_told(cause, clues, scene))
    good = None if first is None else first.last_good_step
    title, remedy = str(cause.title)[:LONGEST_TEXT], str(cause.remedy(scene))[:LONGEST_TEXT]
    return Diagnosis(name, title, confidence, cause.severity, tuple(clues), remedy, good)


def _told(cause: Cause, clues: Iterable[Clue], scene: Scene) -> Iterable[str]:
    """Detectors of what people read that it began with: not all that was ever noted."""
    quoted = {clue.step for clue in clues}
    for name, sign in scene.signs.items():
        loud = name in cause.explains and sign.severity is not Severity.INFO
        if loud or sign.onset_step in quoted:
            yield name


def _sound(clue: Clue) -> Clue:
    """The clue as it can be stored and sent. Raises ValueError where it means nothing."""
    if not 0.0 <= clue.weight <= 1.0:
        raise ValueError(f"a clue must weigh 0 to 1, and one weighs {clue.weight}")
    step = None if clue.step is None else int(clue.step)
    return Clue(float(clue.weight), str(clue.text)[:LONGEST_TEXT], step)
