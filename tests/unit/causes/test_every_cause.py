"""Contract of causes, checked for each module of `sentinel.causes`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random

import pytest
from support.diagnoses import diagnose

from sentinel.config.plugins import load_classes
from sentinel.model.diagnosis import (
    MIN_CONFIDENCE,
    CaseContext,
    SignalRange,
    Symptom,
    contradictions_of,
    sign_of,
)
from sentinel.model.finding import Severity

CAUSES = load_classes("causes")
DETECTORS = load_classes("detectors")
METADATA = (
    {},
    {"framework": "trl", "algorithm": "grpo", "beta": 0.0, "learning_rate": 1e-3, "fp16": "true"},
    {"framework": "verl", "algorithm": "gae", "learning_rate": float("nan"), "ppo_epochs": 8.0},
    {"framework": "lightning", "learning_rate": "1e-3", "beta": "none"},
)
HEALTHY = {"reward": 0.5, "kl_ref": 0.05, "entropy": 0.6, "completion_length": 200.0}
HEALTHY |= {"loss": 1.5, "grad_norm": 0.5}
ODD = {"reward": float("nan"), "learning_rate": 0.0, "kl_ref": float("inf"), "loss": 0.0}
VALUES = ({}, HEALTHY, ODD)
BROKEN = {
    "reward": [(step, 0.5 + 0.01 * (step % 5) if step < 11 else 0.0) for step in range(-30, 40)],
    "kl_ref": [(step, 0.05) for step in range(-30, 40)],
    "grad_norm": [(step, 50.0 if 10 <= step <= 15 else 0.5) for step in range(-30, 40)],
    "loss": [(step, 3.0 if step >= 10 else 1.0) for step in range(-30, 40)],
    "eval_loss": [(step, 1.5 - 0.001 * step) for step in range(-30, 40)],
}
"""A reward that becomes constant where the symptoms begin, a norm that jumps and is back, and a
loss that jumps and stays while that on held-out data does not."""
RANGES = {name: SignalRange(1, 80, 7, 0.0, 2.0) for name in (*HEALTHY, "learning_rate")}


def symptom(detector, onset=10):
    evidence = {"loss_median_of_8": 3.0, "usual_loss_before": 1.0}
    return Symptom(detector, Severity.WARNING, onset, onset + 5, "It is off.", evidence=evidence)


def contexts():
    """Each symptom alone, all together, and 100 random selections."""
    rng = Random(7)
    selections = [[name] for name in DETECTORS] + [list(DETECTORS)]
    selections += [rng.sample(list(DETECTORS), rng.randint(2, 6)) for _ in range(100)]
    for selection in selections:
        symptoms = {name: symptom(name, rng.randint(1, 100)) for name in selection}
        yield CaseContext(symptoms, rng.choice(METADATA), rng.choice(VALUES))
        yield CaseContext(symptoms, {}, HEALTHY, history=BROKEN, ranges=RANGES)


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_a_docstring_with_its_paragraphs(name):
    cause = CAUSES[name]
    heads = [
        line
        for line in (sys.modules[cause.__module__].__doc__ or "").splitlines()[1:]
        if line in ("Evidence", "Source")
    ]

    assert heads == ["Evidence", "Source"]
    assert cause.title
    assert not cause.title.endswith(".")
    assert cause.explains
    assert cause.explains <= DETECTORS.keys()
    assert getattr(cause, "excluded_by", frozenset()) <= DETECTORS.keys() - cause.explains
    assert cause.severity is None or isinstance(cause.severity, Severity)


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_a_sign_that_tells_it_from_others(name):
    """A clause of plain words, which follows "It is ... if"."""
    sign = sign_of(CAUSES[name]())

    assert 20 < len(sign) < 200
    assert not sign.endswith(".")
    assert not re.search(r"\b[a-z]+_[a-z_]+\b", re.sub("`[^`]*`", "", sign))


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_a_test_module(name):
    assert (Path(__file__).parent / f"test_cause_{name}.py").is_file()


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_accepts_any_context(name):
    cause = CAUSES[name]()
    for context in contexts():
        items = list(cause.evidence(context))
        assert all(0.0 < item.weight < 1.0 and item.text.endswith(".") for item in items)
        if any(item.step is not None for item in items):
            assert cause.explains & context.symptoms.keys()
        texts = [item.text for item in items] + [*contradictions_of(cause, context)]
        assert cause.remedy(context).endswith(".")
        assert len(re.split(r"(?<=[.!?])\s+(?=[A-Z])", cause.remedy(context))) <= 3
        for text in (cause.title, cause.remedy(context), *texts):
            assert not re.search(r"\b[a-z]+_[a-z_]+\b", re.sub("`[^`]*`", "", text)), text


@pytest.mark.parametrize("name", CAUSES)
def test_without_an_incident_there_is_no_evidence(name):
    """Unusual settings are no evidence without an incident."""
    for metadata in METADATA:
        for values in VALUES:
            assert list(CAUSES[name]().evidence(CaseContext({}, metadata, values))) == []


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_can_be_diagnosed(name):
    """By some of the detectors it explains, with some settings; otherwise it has no effect."""
    cause = CAUSES[name]()
    selections = [{each: symptom(each) for each in cause.explains}]
    selections += [
        {a: symptom(a), b: symptom(b, 12)} for a in cause.explains for b in cause.explains
    ]
    cases = [
        CaseContext(symptoms, metadata, values, history=history)
        for symptoms in selections
        for metadata in METADATA
        for values in VALUES
        for history in ({}, BROKEN)
    ]
    found = [diagnose(context, {name: cause}) for context in cases]

    assert max(each.confidence for each in found if each is not None) >= MIN_CONFIDENCE
