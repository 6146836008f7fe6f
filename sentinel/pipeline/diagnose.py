"""Chooses the most likely cause of a case."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf, prod

from sentinel.model.checkpoint_clause import fit_last_checkpoint
from sentinel.model.diagnosis import (
    MAX_POSSIBLE_CAUSES,
    MIN_CONFIDENCE,
    MIN_POSSIBLE_CONFIDENCE,
    CaseContext,
    Cause,
    Diagnosis,
    Evidence,
    PossibleCause,
    contradictions_of,
    detectors_of,
    sign_of,
    suggestion_for,
)
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.pipeline.incidents import last_checkpoint_before

log = logging.getLogger(__name__)


MAX_CONFIDENCE = 0.99
"""A few signals never make a diagnosis certain."""


MAX_EVIDENCE_PER_CAUSE = 32
"""Pieces of evidence of one cause that are used."""


MAX_TEXT_CHARS = 1000
"""Characters after which a text of a cause is cut; a plug-in may return any length."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is known of the cause of a case.

    `possible_causes` are empty if there is a `diagnosis`. `contradicted` are the observations that
    exclude causes, one by the name of each.
    """

    diagnosis: Diagnosis | None = None
    possible_causes: tuple[PossibleCause, ...] = ()
    contradicted: Mapping[str, str] = field(default_factory=dict)


def assess(
    context: CaseContext,
    causes: Mapping[str, Cause],
    lead: Incident | None = None,
    detectors: Collection[str] | None = None,
) -> Assessment:
    """The diagnosis of the highest confidence, or the possible causes if it is too low.

    A cause that explains none of the `detectors` of the case, if they are given, is possible only.
    One that raises is logged and skipped, and so is one that cannot be behind the `lead` of the
    case: it does not explain its detector, and begins after the lead was found.
    """
    contradicted, found, possible = dict[str, str](), list[Diagnosis](), list[PossibleCause]()
    for name, cause in causes.items():
        try:
            if contradiction := next(contradictions_of(cause, context), ""):
                contradicted[name] = str(contradiction)[:MAX_TEXT_CHARS]
                continue
            is_candidate = detectors is None or not detectors_of(cause).isdisjoint(detectors)
            diagnosis = _evaluate_cause(name, cause, context) if is_candidate else None
            confidence = suggestion_for(cause, context)
            sign = str(sign_of(cause))[:MAX_TEXT_CHARS]
        except Exception:
            log.exception("Cause %s failed", name)
            continue
        is_after = diagnosis is not None and lead is not None and _is_after(lead, cause, diagnosis)
        if diagnosis is not None and not is_after:
            found.append(diagnosis)
            confidence = max(confidence, diagnosis.confidence)
        if confidence >= MIN_POSSIBLE_CONFIDENCE:
            title = str(cause.title)[:MAX_TEXT_CHARS]
            possible.append(PossibleCause(name, title, confidence, sign))
    best = max(found, key=lambda each: each.confidence, default=None)
    if best is not None and best.confidence >= MIN_CONFIDENCE:
        return Assessment(best, (), contradicted)
    possible.sort(key=lambda each: -each.confidence)
    return Assessment(None, (*possible[:MAX_POSSIBLE_CAUSES],), contradicted)


def _is_after(lead: Incident, cause: Cause, diagnosis: Diagnosis) -> bool:
    onset = diagnosis.onset_step
    is_later = onset is not None and onset > lead.opened_step >= lead.onset_step
    return is_later and lead.key.detector not in cause.explains


def _evaluate_cause(name: str, cause: Cause, context: CaseContext) -> Diagnosis | None:
    pieces = map(_validate_evidence, islice(cause.evidence(context), MAX_EVIDENCE_PER_CAUSE))
    evidence = sorted(pieces, key=lambda piece: inf if piece.step is None else piece.step)
    if not evidence:
        return None
    confidence = min(MAX_CONFIDENCE, 1.0 - prod(1.0 - piece.weight for piece in evidence))
    onset_step, last_good_step, onset_incident = _dates(cause, evidence, context)
    title, remedy = str(cause.title)[:MAX_TEXT_CHARS], str(cause.remedy(context))[:MAX_TEXT_CHARS]
    remedy = fit_last_checkpoint(remedy, has_checkpoint=bool(context.checkpoint_steps))
    return Diagnosis(
        name,
        title,
        confidence,
        cause.severity,
        tuple(evidence),
        remedy,
        last_good_step,
        onset_step,
        onset_incident,
    )


def _dates(
    cause: Cause, evidence: Sequence[Evidence], context: CaseContext
) -> tuple[int | None, int | None, str]:
    """The earliest onset of what the cause explains, the last checkpoint before it, its incident.

    What it explains are its evidence and its notified symptoms.
    """
    # Evidence that names no incident is that of the symptom with its step.
    sources = {piece.incident or piece.step for piece in evidence}
    steps = {piece.step for piece in evidence if piece.step is not None}
    dates: list[tuple[int, int | None, str]] = [
        (symptom.onset_step, symptom.last_good_step, symptom.incident)
        for name, symptom in context.symptoms.items()
        if symptom.incident in sources
        or symptom.onset_step in sources
        or (name in cause.explains and symptom.severity is not Severity.INFO)
    ]
    dates += [
        (step, last_checkpoint_before(step, context.checkpoint_steps), "")
        for step in steps - {onset for onset, *_ in dates}
    ]
    return min(dates, key=lambda date: date[0], default=(None, None, ""))


def _validate_evidence(evidence: Evidence) -> Evidence:
    """The evidence with plain types and bounded text. Raises ValueError for a bad weight."""
    if not 0.0 <= evidence.weight <= 1.0:
        raise ValueError(f"the weight of evidence must be 0 to 1, not {evidence.weight}")
    step = None if evidence.step is None else int(evidence.step)
    text = str(evidence.text)[:MAX_TEXT_CHARS]
    return Evidence(float(evidence.weight), text, step, str(evidence.incident))
