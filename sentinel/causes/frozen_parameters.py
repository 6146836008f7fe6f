"""Frozen parameters: the parameters that should be trained are not, since the first step.

Adapters that are not connected to the output, `requires_grad` False, an optimizer without the
relevant parameters, a learning rate of 0: the run costs as much as a training, and changes nothing.
Or some layers only are cut off, and the others train around them.

Evidence
    Weights that do not change in a step, or that no optimizer holds, are what was measured.
    A gradient of exactly 0 since the first step, or a learning rate that was never above 0, is
    sufficient; so are layers that never had a gradient, or whose weights do not change, while
    others do. A loss or a reward that never moved is the effect. Groups with one reward, masked
    labels and NaN losses leave no gradient either, and are other causes. A gradient in some of the
    records excludes it, and so does a policy that changes at a rate that the log rounds to 0.

Source
    locuslab/open-unlearning issue 178 and huggingface/peft issue 137: adapters without a gradient
    under gradient checkpointing, since no input required one. Tiny trainings of frozen weights, in
    the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import StatedCause, is_reported, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.signals.setting_names import describe_setting

NEGLIGIBLE_GRAD_NORM = 1e-7
"""Gradient norm that changes no weight."""


class FrozenParameters(StatedCause):
    """Diagnoses by a gradient, a learning rate or updates that were 0 from the start."""

    title = "frozen parameters"
    explains = frozenset({
        "weights_not_updated", "grad_vanishing", "layer_gradient_dead", "layer_update_ratio",
        "learning_rate_anomaly", "loss_never_moved", "loss_plateau", "reward_stalled", "loss_zero",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {
        "loss_never_moved": 0.3,
        "reward_stalled": 0.3,
        "loss_zero": 0.4,
    }
    sign = (
        "the gradient norm (log `grad_norm`) is 0 in every record, or no weight changes in a step"
    )

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A gradient or a changed policy in some of the records, unless single layers are cut off.

        A logger that rounds shows a small learning rate as 0.
        """
        zero = context.symptoms.get("loss_zero")
        if zero is not None and zero.evidence.get("last_nonzero_loss") != "none":
            yield "The loss was above 0 before."
        clipped, norm = context.ranges.get("clip_fraction"), context.ranges.get("grad_norm")
        if _no_rate(context) is not None and clipped is not None and clipped.highest > 0.0:
            yield "Tokens are clipped, so the policy changes: the rate is too small for the log."
        is_by_norm = _no_rate(context) is None and not any(_frozen_layers(context))
        if is_by_norm and norm is not None and norm.highest > NEGLIGIBLE_GRAD_NORM:
            yield f"The gradient norm was {norm.highest:.3g} before."

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """No gradient or learning rate since the start, and a loss or reward that never moved."""
        if context.earliest("reward_zero_variance", "loss_zero", "nan_or_inf") is not None:
            return
        yield from symptom_evidence(_not_updated(context), 0.9)
        no_gradient = _zero_from_start(context.symptoms.get("grad_vanishing"), "grad_norm_before")
        no_rate = _no_rate(context)
        stagnation = context.earliest("loss_never_moved", "reward_stalled")
        norm = context.values.get("grad_norm")
        is_negligible = (
            no_gradient is None
            and stagnation is not None
            and norm is not None
            and 0 <= norm < NEGLIGIBLE_GRAD_NORM
        )
        layers = list(_frozen_layers(context))
        if no_gradient is None and no_rate is None and not is_negligible and not layers:
            return
        for symptom in layers:
            yield from symptom_evidence(symptom, 0.65)
        yield from symptom_evidence(no_gradient, 0.65)
        yield from symptom_evidence(no_rate, 0.8)
        yield from symptom_evidence(stagnation, 0.5)
        if is_negligible:
            yield Evidence(0.5, f"The gradient norm is {norm:.2g}, too small to change a weight.")

    def remedy(self, context: CaseContext) -> str:
        """Count the trained parameters; check adapters, the schedule, or the frozen layers."""
        not_updated = _not_updated(context)
        if not_updated is not None and not_updated.remedy:
            return not_updated.remedy
        if _no_rate(context) is not None:
            rate, schedule, warmup, count = (
                describe_setting(name, context.metadata)
                for name in (
                    "learning rate",
                    "learning-rate schedule",
                    "warm-up",
                    "maximum number of steps",
                )
            )
            return (
                "Stop the run: its checkpoints contain the initial weights. Check what makes the "
                f"rate 0: {rate} itself, {schedule}, {warmup} that does not end, or a scheduler "
                f"created for fewer steps than {count}. Check that the scheduler is stepped after "
                "each optimizer step."
            )
        layers = {f"`{each.evidence['layer']}`" for each in _frozen_layers(context)}
        if layers and "grad_vanishing" not in context.symptoms:
            return (
                "Stop the run: its checkpoints contain the initial weights of "
                f"{' and '.join(sorted(layers))}. Check that the layer is connected to the loss "
                "(no `detach()`, no `torch.no_grad()`, no adapter that is off), and that its "
                "units are not all off. Check that "
                f"{describe_setting('learning rate', context.metadata)} of its parameters is not 0."
            )
        return (
            "Stop the run: its checkpoints contain the initial weights. Count the "
            "parameters that require a gradient and are in the optimizer "
            "(`sum(p.numel() for p in model.parameters() if p.requires_grad)`), and check that "
            f"{describe_setting('learning rate', context.metadata)} is not 0. With adapters and "
            "gradient checkpointing call `model.enable_input_require_grads()`, and check that the "
            "adapter is active."
        )


def _not_updated(context: CaseContext) -> Symptom | None:
    """The symptom of weights that were compared around a step, or that are in no optimizer."""
    return context.symptoms.get("weights_not_updated")


def _no_rate(context: CaseContext) -> Symptom | None:
    """The symptom of a learning rate that was 0 from the start."""
    symptom = context.symptoms.get("learning_rate_anomaly")
    return _zero_from_start(symptom, "highest_learning_rate", None)


def _frozen_layers(context: CaseContext) -> Iterable[Symptom]:
    """Symptoms of layers that never had a gradient, or whose weights do not change."""
    for name, key in (
        ("layer_gradient_dead", "layer_gradient_norm_before"),
        ("layer_update_ratio", "update_fraction"),
    ):
        if name == "layer_update_ratio" and "layer_gradient_vanishing" in context.symptoms:
            # A gradient that is too small to move the weights has another reason.
            continue
        symptom = _zero_from_start(context.symptoms.get(name), key, None)
        if symptom is not None and "layer" in symptom.evidence:
            yield symptom


def _zero_from_start(
    symptom: Symptom | None, evidence_key: str, default: float | None = 0.0
) -> Symptom | None:
    """The symptom, if its evidence of that key is 0."""
    is_zero = is_reported(symptom) and symptom.evidence.get(evidence_key, default) == 0.0
    return symptom if is_zero else None
