"""Policy collapse: the policy moves away from its reference, and its reward collapses.

It drifts because the KL term is too weak or the steps are too large, until its texts leave the
range that the reward was made for; then the reward falls, and texts repeat, grow or shrink.

Evidence
    The fall of the reward is the main evidence. A KL that rose no later than the reward fell is the
    classic symptom; an entropy or length that left its range is another, since two of three policy
    runs log no KL. Notes of severity info do not count. Texts that begin to loop are as good as
    either, and so are, where no KL is logged, weights that are half of their initial norm or more
    away from those of the reference, or 5 times in adapters; with a KL they support it. A small KL
    coefficient or a high learning rate is the reason. If the reward became constant at once, the
    sampling engine differed first, or only the entropy collapsed, the cause is another one. A
    reward that is back excludes it.

Source
    Ouyang et al. 2022 (arXiv:2203.02155) on the purpose of the KL term; the collapses of the
    labelled logs, where reward, length and entropy leave their range within 80 points of each
    other. Tiny policies of TRL move by at most 0.21 of their initial norm in healthy trainings, and
    by 0.86 in the first 10 steps at ten times their rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    certainly_first,
    is_reported,
    possibly_first,
    stronger_kl_advice,
    symptom_evidence,
    weak_kl_control_evidence,
)
from sentinel.causes.reward_function_broken import is_sudden_constant
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting
from sentinel.signals.usual_learning_rate import has_adapters

MAX_ONSET_DELAY_POINTS = 8
"""Logged values by which the drift may appear to begin after the fall of the reward: a cliff is
dated at once, a slow rise only when it exceeds the noise. A length alone that left its
range earlier than that before the fall left the reward intact: many healthy policies learn to write
longer."""

DRIFTS = (
    ("kl_blowup", "kl_drift"),
    ("entropy_collapse", "entropy_explosion"),
    ("length_explosion", "length_collapse"),
)
"""Detectors of each signal of the policy that may leave its range before the reward falls."""

LENGTH_DETECTORS = frozenset({"length_explosion", "length_collapse", "truncation"})

FAR_FROM_REFERENCE, FAR_WITH_ADAPTERS = 0.5, 5.0
"""Distance of the weights from those of the reference, relative to the initial norm. That of
adapters, whose second matrix begins at 0, is small: they travel 3.3 times it in a healthy run."""

SUDDEN_VALUES = 2
"""Logged rewards without spread, at once and beside an unchanged policy, that may be a fault of the
reward function."""


class PolicyCollapse(StatedCause):
    """Diagnoses by the fall of the reward, and by incidents that began no later."""

    title = "policy collapse"
    explains = frozenset({
        "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse", "entropy_explosion",
        "length_explosion", "length_collapse", "repetition", "truncation", "grad_explosion",
        "clip_saturation", "reward_zero_variance", "loss_spike", "loss_divergence", "kl_negative",
        "value_fit", "rollout_mismatch",
    })  # fmt: skip
    severity = Severity.CRITICAL
    suggested_by: ClassVar[Mapping[str, float]] = {"reward_collapse": 0.4, "length_collapse": 0.3}
    sign = (
        "the KL to the reference, the entropy or the length changed before the reward fell "
        "(log `kl`, `entropy` and the completion length), and does not return"
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and earlier incidents; nothing without either."""
        reward, repetition = context.earliest("reward_collapse"), context.earliest("repetition")
        fall = context.earliest("reward_collapse", "repetition")
        if fall is repetition and repetition is not None and repetition.severity is Severity.INFO:
            # Repetitive data is no fall.
            fall = reward
        if fall is None:
            return
        if reward is not None and is_sudden_constant(context, reward, SUDDEN_VALUES):
            return
        drift = [
            symptom
            for names in DRIFTS
            if (symptom := _earliest_reported(context, *names)) is not None
        ]
        mismatch = _earliest_reported(context, "rollout_mismatch")
        if mismatch is not None and certainly_first(mismatch, fall, *drift):
            # The sampling engine is the cause.
            return
        truncation = _earliest_reported(context, "truncation")
        if truncation is not None and certainly_first(fall, truncation):
            # Completions that were cut off first are a cause of their own.
            drift.append(truncation)
        # With both a falling reward and looping texts, the order does not matter.
        has_both = reward is not None and repetition is not None
        distance = list(_distance_evidence(context))
        is_far_without_kl = bool(distance) and "kl_ref" not in context.values
        is_led = drift and (has_both or _is_led(fall, drift, context.steps_per_point))
        if not is_far_without_kl and not is_led:
            return
        yield from symptom_evidence(fall, 0.5)
        if has_both:
            yield from symptom_evidence(repetition if fall is reward else reward, 0.3)
        for symptom in drift:
            yield from symptom_evidence(symptom, 0.5)
        yield from distance
        yield from symptom_evidence(context.earliest("reward_zero_variance"), 0.2)
        yield from weak_kl_control_evidence(context)

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A reward that is back, where nothing else shows that the policy changed."""
        fall = context.symptoms.get("reward_collapse")
        has_changed = is_reported(context.earliest("kl_blowup", "repetition"))
        if fall is not None and fall.is_over and not has_changed:
            yield "The reward is as before again."

    def remedy(self, context: CaseContext) -> str:
        """Resume from before the onset with a stronger KL term."""
        return (
            "Stop the run, and resume from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)} and half of "
            f"{describe_setting('learning rate', context.metadata)}. If it recurs at the same "
            "samples, read them: the reward may pay for unwanted text."
        )


def _distance_evidence(context: CaseContext) -> Iterable[Evidence]:
    """Weights far from those of the reference, as evidence."""
    distance = context.values.get("distance_to_reference")
    far = FAR_WITH_ADAPTERS if has_adapters(context.metadata) else FAR_FROM_REFERENCE
    if distance is None or not distance >= far:
        return
    text = f"The weights of the policy are {distance:.2g} times their initial norm away"
    yield Evidence(0.3, f"{text} from those of the reference.")


def _earliest_reported(context: CaseContext, *detectors: str) -> Symptom | None:
    """The earliest symptom of these detectors above severity info."""
    return context.earliest(*(x for x in detectors if is_reported(context.symptoms.get(x))))


def _is_led(fall: Symptom, drift: Sequence[Symptom], steps_per_point: float) -> bool:
    """Whether the drift may have come first: KL, entropy, two symptoms, or a length near the fall.

    If only the entropy collapsed, and little reward was lost, the policy has stopped exploring.
    """
    tolerance = MAX_ONSET_DELAY_POINTS * steps_per_point
    early = [each for each in drift if possibly_first(each, fall, tolerance_steps=tolerance)]
    decisive = (
        each.detector not in LENGTH_DETECTORS
        or fall.earliest_onset - each.earliest_onset <= tolerance
        for each in early
    )
    is_only_entropy = [each.detector for each in drift] == ["entropy_collapse"]
    if is_only_entropy and fall.severity is not Severity.CRITICAL:
        return False
    return len(early) >= 2 or any(decisive)
