"""Numerical breakdown: values exceeded the range of their format, and the loss became NaN.

Half precision ends at 65504. Activations or gradients beyond it are infinite, the difference of two
infinities is NaN, and one such update makes every weight NaN.

Evidence
    A loss or gradient that is NaN or infinite is the main evidence. A gradient norm, or a loss,
    that rose before supports an overflow; so do half precision, and a loss scale that had to fall
    to almost 1. A gradient norm that was never finite, and a learning rate that has not moved since
    the first step, show that every step of the optimizer is skipped. A policy whose weights are NaN
    writes one token until the limit, such as "!!!!", and earns nothing: an end of its length,
    reward or entropy that begins with the lost value, or a few steps later, is its effect if the
    value stays lost, or 0, which some trainers log for NaN. One lost value is enough then. A loss
    that is exactly 0 at once is one of NaN that the trainer logs as 0.

Source
    Micikevicius et al. 2018 (arXiv:1710.03740) on half precision and loss scaling; a tiny training
    in float16 whose optimizer divides by an underflow, in the tests. Public reports of policies
    that write "!!!!" after a NaN: verl#721, #747, #751 and #2626, ms-swift#3136 and #3930.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from sentinel.causes._evidence import StatedCause, is_reported, symptom_evidence
from sentinel.model.diagnosis import MAX_EFFECT_DELAY_POINTS, CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.precision import is_float16
from sentinel.signals.setting_names import describe_setting

EXHAUSTED_LOSS_SCALE = 1.0
"""Loss scale that no longer prevents underflow; it starts at about 65536 and is halved at each
overflow."""

LEARNED_SHARE = 0.1
"""Share of the highest loss below which a loss can have been learned to 0."""

MIN_FROZEN_VALUES = 5
"""Logged values of a learning rate that show whether it follows its schedule."""


OF_WEIGHTS = frozenset({"loss", "eval_loss", "grad_norm", "reward", "kl_ref", "kl_old", "entropy"})
"""Signals that are not finite if the weights are not; an explained variance of equal returns is
undefined as well."""


class NumericalBreakdown(StatedCause):
    """Diagnoses by NaN or infinite values, and by growth before them."""

    title = "numerical breakdown"
    explains = frozenset({
        "nan_or_inf", "grad_explosion", "loss_spike", "loss_divergence", "loss_zero",
    })  # fmt: skip
    effects = frozenset({
        "reward_collapse", "reward_stalled", "reward_zero_variance", "length_explosion",
        "length_collapse", "truncation", "repetition", "entropy_collapse", "entropy_explosion",
        "kl_blowup", "kl_drift", "kl_negative", "clip_saturation", "rollout_mismatch", "value_fit",
    })  # fmt: skip
    sign = (
        "the first value that is not finite follows large ones (log `grad_norm`), and a wider "
        "number format avoids it"
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The lost values with what preceded and followed; nothing for a single overflow."""
        lost = context.symptoms.get("nan_or_inf") or _zeroed_loss(context)
        if lost is None:
            return
        effects = list(self._effects(context, lost))
        if lost.severity is Severity.INFO and not effects:
            return
        grown = [
            each
            for each in (
                context.symptoms.get("grad_explosion"),
                context.earliest("loss_spike", "loss_divergence"),
            )
            if each is not None and each.onset_step <= lost.onset_step
        ]
        # What made values grow first, or the data or the GPU of one rank, can be the reason.
        differing = context.earliest("rank_desync", "rank_outlier")
        alone = 0.65 if lost.rank is None and differing is None and not grown else 0.5
        yield from symptom_evidence(lost, 0.9 if effects else alone)
        for effect in effects:
            yield from symptom_evidence(effect, 0.4)
        for each in grown:
            yield from symptom_evidence(each, 0.4)
        if is_float16(context.metadata, {}):
            yield Evidence(0.3, "The run trains in float16, whose largest value is 65504.")
        scale = context.values.get("loss_scale")
        if scale is not None and 0.0 < scale <= EXHAUSTED_LOSS_SCALE:
            yield Evidence(0.4, f"The loss scale has fallen to {scale:g}.")
        yield from _skipped_steps_evidence(context)

    def _effects(self, context: CaseContext, lost: Symptom) -> Iterable[Symptom]:
        """What begins with the lost value or soon after, above severity info."""
        if not _stays_lost(context, lost):
            return
        delay = MAX_EFFECT_DELAY_POINTS * context.steps_per_point
        for symptom in context.symptoms.values():
            is_effect = symptom.detector in self.effects and symptom.severity is not Severity.INFO
            if is_effect and symptom.can_follow(lost, delay):
                yield symptom

    def remedy(self, context: CaseContext) -> str:
        """Smaller values, and a wider format in float16, from before the onset."""
        wider = (
            f"{describe_setting('bfloat16 precision', context.metadata)} if the GPU supports it, "
            if is_float16(context.metadata, context.values)
            else ""
        )
        clipping = describe_setting("gradient clipping", context.metadata)
        return (
            "Stop the run if values stay NaN: NaN weights do not recover. Resume from the last "
            f"checkpoint before the onset, with {wider}{clipping} at 1 and half of "
            f"{describe_setting('learning rate', context.metadata)}. If it recurs at the same "
            "step, inspect the batch of that step."
        )


def _zeroed_loss(context: CaseContext) -> Symptom | None:
    """The symptom of a loss that is exactly 0 at once, which is how trainers log one of NaN."""
    zero = context.symptoms.get("loss_zero")
    before = None if zero is None else zero.evidence.get("last_nonzero_loss")
    losses = context.ranges.get("loss")
    if not isinstance(before, float) or losses is None or not is_reported(zero):
        return None
    return zero if abs(before) > LEARNED_SHARE * losses.highest else None


def _stays_lost(context: CaseContext, lost: Symptom) -> bool:
    """Whether the newest value of a lost signal of the weights is not finite, or is 0."""
    newest = (context.values.get(name) for name in lost.evidence if name in OF_WEIGHTS)
    return any(value is not None and (value == 0.0 or not isfinite(value)) for value in newest)


def _skipped_steps_evidence(context: CaseContext) -> Iterable[Evidence]:
    """A learning rate that stays where it began while no gradient norm is finite."""
    norm = context.values.get("grad_norm")
    rates = [rate for _, rate in context.history.get("learning_rate", ())]
    has_finite_norm = norm is None or isfinite(norm) or bool(context.history.get("grad_norm"))
    is_constant = context.text("lr_scheduler_type").startswith("constant")
    if has_finite_norm or is_constant or len(rates) < MIN_FROZEN_VALUES or len(set(rates)) > 1:
        return
    yield Evidence(
        0.4,
        f"No gradient norm was finite, and the learning rate is {rates[0]:g} in all {len(rates)} "
        "logged values: the steps of the optimizer are skipped.",
    )
