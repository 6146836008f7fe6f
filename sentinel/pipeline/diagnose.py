"""Chooses the most likely cause of a case."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf, prod

from sentinel.model.diagnosis import MIN_CONFIDENCE, CaseContext, Cause, Diagnosis, Evidence
from sentinel.model.finding import Severity

log = logging.getLogger(__name__)


MAX_CONFIDENCE = 0.99
"""Nothing that is read off a few signals is certain."""


MAX_EVIDENCE_PER_CAUSE = 32
"""Clues of one cause that are looked at."""


MAX_TEXT_CHARS = 1000
"""Characters kept of one text of a cause: those of plug-ins may have no end."""


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
