"""Learning rate too high: updates are too large, so that the loss oscillates or diverges.

The loss rises at the end of a warm-up, or at once without one, and so does the gradient norm;
slightly above the stable rate, the loss oscillates instead.

At a rate far above the usual the loss does not even diverge: it stays at the level of token
frequencies, far above the best that is possible, and the gradient norm vanishes or swings.

Evidence
    A loss that diverged, oscillates or jumps repeatedly is the main evidence, and a swing that does
    not shrink suffices; a rising gradient norm supports it. A rate above the usual for this kind of
    training, without a warm-up, is the reason, and makes even a single jump count. A rate ten times
    above the usual explains a gradient that has vanished, and one fifty times above it a loss that
    has stopped falling or never fell, and a NaN that it ends in. Where layers are measured, a step
    that changes half of them by more than half of their weights is evidence by itself, and so is a
    sharpness far beyond what the rate is stable at. Layers whose units die, or that saturate, after
    they had a gradient, support it. One event at a usual rate, a rise that training undoes at the
    same rate, and, where no gradient norm is logged, one that leaves the loss below that of an
    untrained model make it possible only. A resume at which it begins excludes it, and so does a
    rate that had decayed to a tenth of its highest before, and, at a rate that is not high, a
    gradient norm or a held-out loss that did not rise with the loss: the data changed. A loss that
    fell without a bound has a term that is wrong.

Source
    Cohen et al. 2021 (arXiv:2103.00065) on the edge of stability; Wortsman et al. 2023
    (arXiv:2309.14322) on rates that diverge. Tiny trainings at 100 times their rate, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import ClassVar

from sentinel.causes._evidence import (
    MIN_VALUES_BACK,
    StatedCause,
    follows_restart,
    is_reported,
    possibly_first,
    restart_step,
    signals_without_rise,
    symptom_evidence,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.evidence_text import capitalized, in_words
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting
from sentinel.signals.usual_learning_rate import (
    highest_learning_rate,
    states_optimizer,
    usual_learning_rate,
)

FAR_TOO_HIGH, FAR_TOO_HIGH_FOR_LOSS = 10.0, 50.0
"""Factor on the highest usual rate that no sweep contains, and that explains a loss that stays, or
a NaN, whatever the data."""

DECAYED_SHARE = 0.1
"""Share of the highest learning rate below which the rate is not what makes a loss unstable: the
largest stable rate changes less than that in a training."""

UNDONE_SHARE = 0.6
"""Share of its rise that a loss which still learns at the same rate has left."""

_UNSTABLE = ("loss_divergence", "oscillation", "loss_spike")

NORM_BEFORE_KEY = "layer_gradient_norm_before"
"""Key of evidence: the gradient norm of a layer before it died or vanished."""

LARGEST_AT_START_KEY = "largest_loss_at_start"
"""Key of evidence: the largest magnitude of the first losses, of one that fell without a bound."""

EARLY_STEPS = 200
"""Steps in which a warm-up would help."""


class LearningRateTooHigh(StatedCause):
    """Diagnoses by divergence, oscillation or jumps of the loss, and by the rate itself."""

    title = "learning rate too high"
    explains = frozenset({
        "loss_divergence", "loss_spike", "oscillation", "grad_explosion", "nan_or_inf",
        "loss_plateau", "loss_never_moved", "grad_vanishing", "learning_rate_high",
        "layer_gradient_dead", "layer_gradient_exploding", "layer_gradient_vanishing",
        "layer_update_ratio", "sharpness_high",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {
        "reward_collapse": 0.25,
        "grad_explosion": 0.3,
        "loss_spike": 0.3,
        "loss_never_moved": 0.35,
        "loss_plateau": 0.3,
        "kl_blowup": 0.3,
        "overfitting": 0.3,
    }
    sign = "the loss behaves with a tenth of the rate (log `learning_rate` and `grad_norm`)"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """An unstable loss and its reason; nothing for a single jump at a usual rate."""
        divergence = context.symptoms.get("loss_divergence")
        oscillation = context.symptoms.get("oscillation")
        yield from _stuck_evidence(context)
        spike, high_rate = context.symptoms.get("loss_spike"), _high_rate_evidence(context)
        # Until a loss that rose has settled, each jump may be of the same event.
        is_settled = divergence is None or divergence.severity is Severity.CRITICAL
        has_recurred = spike is not None and spike.occurrences > 1 and is_settled
        # Where the loss jumped in one step and stays high, a batch may have caused it as well.
        is_jump = spike is not None and (
            divergence is None
            or (possibly_first(spike, divergence) and possibly_first(divergence, spike))
        )
        is_gradual = divergence is not None and not is_jump
        layers = list(_layer_evidence(context))
        yield from layers
        if not (is_gradual or oscillation is not None or has_recurred or (is_jump and high_rate)):
            yield from high_rate if layers else ()
            return
        # At a usual rate, of a NaN at the end, and of memorised data, there are other reasons.
        is_usual = usual_learning_rate(context.metadata) is not None and not high_rate
        lasts = is_reported(oscillation)
        is_one_event = is_usual and not (has_recurred or lasts)
        other = context.earliest("nan_or_inf", "overfitting")
        is_alone = is_gradual and other is None and not is_usual
        is_open = not is_alone or not _is_beyond_recovery(context, divergence)
        yield from symptom_evidence(divergence, 0.45 if is_open else 0.65)
        yield from symptom_evidence(oscillation, 0.65 if lasts and not is_usual else 0.45)
        if not is_one_event:
            yield from symptom_evidence(spike, 0.4 if has_recurred else 0.2)
            yield from weighted_evidence(context, {"grad_explosion": 0.4, "nan_or_inf": 0.2})
        yield from high_rate
        began = context.earliest(*_UNSTABLE)
        if began is not None and began.onset_step <= EARLY_STEPS and _has_no_warmup(context):
            yield Evidence(0.2, "The run has no warm-up.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A rate that is far below the one at which the run was stable; gradients of many steps."""
        if context.earliest_in_run("gradients_not_cleared") is not None:
            yield "Gradients are not cleared between updates."
        rates, began = context.ranges.get("learning_rate"), context.earliest(*_UNSTABLE)
        points = context.history.get("learning_rate", ())
        before = [rate for step, rate in points if began and step < began.onset_step]
        if before and rates is not None and before[-1] < DECAYED_SHARE * rates.highest:
            yield f"The learning rate was {before[-1]:.3g} by then, after {rates.highest:.3g}."
        restart = restart_step(context)
        if restart is not None and follows_restart(context, began, restart):
            yield f"It began when the run was resumed at step {restart}."
        divergence = context.symptoms.get("loss_divergence")
        if divergence is not None and LARGEST_AT_START_KEY in divergence.evidence:
            yield "The loss fell, and nothing bounds it from below."
        if divergence is not None and not _high_rate_evidence(context):
            for signal in signals_without_rise(context, divergence):
                yield f"{capitalized(in_words(signal))} did not rise with the loss."

    def remedy(self, context: CaseContext) -> str:
        """Smaller updates, from before the onset."""
        usual = usual_learning_rate(context.metadata)
        if usual is None and states_optimizer(context.metadata):
            usual = highest_learning_rate(context.metadata)
        if usual is not None and _rate(context) > FAR_TOO_HIGH * usual.highest:
            return (
                "Start again from the initial weights with "
                f"{describe_setting('learning rate', context.metadata)} at {usual.highest:g} or "
                f"less, which is usual for {usual.kind}."
            )
        return (
            "Resume from the last checkpoint before the onset with a third of "
            f"{describe_setting('learning rate', context.metadata)}. If it began within the first "
            f"steps, lengthen {describe_setting('warm-up', context.metadata)} as well. Set "
            f"{describe_setting('gradient clipping', context.metadata)} to the usual gradient norm."
        )


def _is_beyond_recovery(context: CaseContext, divergence: Symptom | None) -> bool:
    """Whether the loss rose as it does when steps are too large, rather than when data change."""
    points = context.history.get("loss", ())
    if divergence is None:
        return False
    risen = [loss for step, loss in points if step >= divergence.onset_step]
    before = [loss for step, loss in points if step < divergence.onset_step]
    if before and len(risen) >= MIN_VALUES_BACK:
        usual, now = median(before), median(risen[-MIN_VALUES_BACK:])
        if now - usual < UNDONE_SHARE * (median(sorted(risen)[-MIN_VALUES_BACK:]) - usual):
            return False
    return "grad_norm" in context.values or divergence.severity is Severity.CRITICAL


def _stuck_evidence(context: CaseContext) -> Iterable[Evidence]:
    """A training that does not progress at a rate far above the usual."""
    vanishing = context.symptoms.get("grad_vanishing")
    if vanishing is not None and vanishing.evidence.get("grad_norm_before") == 0.0:
        # A norm that has been 0 since the first step is that of frozen parameters.
        return
    anomaly = context.symptoms.get("learning_rate_high")
    if is_reported(anomaly):
        yield from symptom_evidence(anomaly, 0.7)
        return
    rate, usual = _rate(context), usual_learning_rate(context.metadata)
    if usual is None or rate <= FAR_TOO_HIGH * usual.highest:
        return
    is_far = rate > FAR_TOO_HIGH_FOR_LOSS * usual.highest
    losses = ("loss_plateau", "loss_never_moved") if is_far else ()
    stuck = context.earliest("grad_vanishing", *losses)
    if stuck is None:
        return
    yield from symptom_evidence(stuck, 0.4)
    text = f"{rate / usual.highest:.0f} times the highest usual for {usual.kind}"
    yield Evidence(0.5, f"The learning rate is {rate:g}, {text}.")


def _layer_evidence(context: CaseContext) -> Iterable[Evidence]:
    """Updates and curvature that are too large for the weights, and layers that they broke."""
    updates = context.symptoms.get("layer_update_ratio")
    if updates is not None and updates.evidence.get("update_fraction", 0.0) != 0.0:
        yield from symptom_evidence(updates, 0.3 if updates.severity is Severity.INFO else 0.65)
    yield from symptom_evidence(context.symptoms.get("sharpness_high"), 0.65)
    for name, weight in (("layer_gradient_dead", 0.45), ("layer_gradient_vanishing", 0.3)):
        broken = context.symptoms.get(name)
        # Without a gradient before, the layer was broken from the start, whatever the rate.
        if broken is not None and broken.evidence.get(NORM_BEFORE_KEY, 0.0) != 0.0:
            yield from symptom_evidence(broken, weight)


def _rate(context: CaseContext) -> float:
    rates = (context.number("learning_rate"), context.values.get("learning_rate"))
    return max((rate for rate in rates if rate is not None), default=0.0)


def _high_rate_evidence(context: CaseContext) -> list[Evidence]:
    """A rate that is high for this kind of training, as evidence."""
    rate, metadata = _rate(context), context.metadata
    usual = usual_learning_rate(metadata) or highest_learning_rate(metadata)
    if usual is None or rate <= usual.highest:
        return []
    is_far = rate > FAR_TOO_HIGH_FOR_LOSS * usual.highest
    text = f"The learning rate is {rate:g}, {'far too ' if is_far else ''}high for {usual.kind}."
    return [Evidence(0.5 if is_far else 0.3, text)]


def _has_no_warmup(context: CaseContext) -> bool:
    settings = [context.number("warmup_steps"), context.number("warmup_ratio")]
    return not any(settings) and any(value is not None for value in settings)
