"""Evidence and remedies shared by several causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import ClassVar, TypeGuard

from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting, with_setting_names
from sentinel.signals.usual_learning_rate import ADAPTER_FACTOR, has_adapters

WEAK_KL_COEFFICIENT = 0.01
"""KL coefficient below which the KL term is weaker than in published runs."""

PUBLISHED_KL_COEFFICIENTS = (0.02, 0.04)
"""Usual KL coefficients of published runs; defaults of 0.001 (verl) and 0 (TRL) are lower."""

FAST_LEARNING_RATE = 1e-5
"""Learning rate above which full fine-tuning by reward is fast."""

MIN_VALUES_BACK = 4
"""Logged values after a finding that show whether a signal is back: their median has two of them on
each side, so that no single value decides."""

_KL_COEFFICIENT_KEYS = ("beta", "kl_coef", "kl_loss_coef")


class StatedCause:
    """A cause whose remedy is a text, and whose severity is that of the incidents.

    `advice` is the remedy; a setting in braces gets the name that the framework has for it.
    """

    severity: ClassVar[Severity | None] = None
    advice: ClassVar[str] = ""

    def remedy(self, context: CaseContext) -> str:
        """What to do, with the setting names of the framework in use."""
        return with_setting_names(self.advice, context.metadata)


def symptom_evidence(symptom: Symptom | None, weight: float) -> Iterable[Evidence]:
    """A symptom as evidence; nothing if it is None.

    >>> list(symptom_evidence(None, 0.5))
    []
    """
    if symptom is None:
        return ()
    return (Evidence(weight, symptom.summary, symptom.onset_step, symptom.incident),)


def weighted_evidence(context: CaseContext, weights: Mapping[str, float]) -> Iterator[Evidence]:
    """The symptoms of these detectors as evidence, each with its weight; of "a or b" the earlier.

    >>> list(weighted_evidence(CaseContext(), {"kl_blowup or kl_drift": 0.4}))
    []
    """
    for detectors, weight in weights.items():
        yield from symptom_evidence(context.earliest(*detectors.split(" or ")), weight)


def summaries(context: CaseContext, *detectors: str) -> Iterator[str]:
    """The symptoms of these detectors as sentences."""
    return (context.symptoms[name].summary for name in detectors if name in context.symptoms)


def is_reported(symptom: Symptom | None) -> TypeGuard[Symptom]:
    """Whether it is there, above severity info."""
    return symptom is not None and symptom.severity is not Severity.INFO


def is_back(context: CaseContext, signal: str, symptom: Symptom, factor: float) -> bool:
    """Whether the newest values are within that factor of those before the symptom, either way."""
    points = context.history.get(signal, ())
    before = [abs(value) for step, value in points if step < symptom.onset_step]
    after = [abs(value) for step, value in points if step > symptom.opened_step][-MIN_VALUES_BACK:]
    if not before or len(after) < MIN_VALUES_BACK:
        return False
    usual, now = median(before), median(after)
    return usual <= factor * now and now <= factor * usual


def mean_error(values: Sequence[float], *counts: int) -> float:
    """Standard error of the difference of means of so many values each, by the noise of `values`.

    >>> mean_error([0.0, 1.13, 0.0], 2, 2)
    1.0
    """
    # The mean absolute difference of two normal values is 1.13 standard deviations.
    noise = fmean(abs(a - b) for a, b in pairwise(values)) / 1.13
    return float(noise * sum(1 / count for count in counts) ** 0.5)


RESTART_EFFECT_POINTS, ONSET_TOLERANCE_POINTS = 32, 4
"""Logged values after a restart in which an incident counts as its effect, and by which an onset
may be estimated too early."""


def restart_step(context: CaseContext) -> int | None:
    """First step after the last resume; in a log, a step that went back shows it.

    None for a run that restarted at its first step, since it had no state to lose.
    """
    step = context.number(RESUMED_STEP_KEY, "resumed_from")
    back = context.earliest_in_run("step_regression")
    if step is None and back is not None and back.severity is not Severity.CRITICAL:
        step = back.onset_step
    first_step = max(1.0, context.number("logging_steps") or 1.0)
    return None if step is None or step <= first_step else int(step)


def follows_restart(context: CaseContext, symptom: Symptom | None, restart: int | None) -> bool:
    """Whether the symptom begins soon after the restart."""
    if symptom is None or restart is None:
        return False
    points = (symptom.onset_step - restart) / context.steps_per_point
    return -ONSET_TOLERANCE_POINTS <= points <= RESTART_EFFECT_POINTS


UNCHANGED_FACTOR, SHARED_RISE = 1.2, 1 / 4
"""Factor by which the noise of a gradient norm raises its highest values, and the power of the rise
of the loss by which a held-out loss rises at least if the weights are worse."""


def signals_without_rise(context: CaseContext, divergence: Symptom) -> Iterator[str]:
    """The gradient norm and the held-out loss, if they are known not to have risen with the loss.

    The updates are then as before, or the weights are: the data changed.
    """
    level = divergence.evidence.get("loss_median_of_8")
    usual = divergence.evidence.get("usual_loss_before")
    shared = 0.0
    if isinstance(level, float) and isinstance(usual, float) and 0.0 < usual < level:
        shared = float((level / usual) ** SHARED_RISE)
    for signal, factor in (("grad_norm", UNCHANGED_FACTOR), ("eval_loss", shared)):
        if _stays_at_level(context, signal, divergence, factor):
            yield signal


def _stays_at_level(context: CaseContext, signal: str, divergence: Symptom, factor: float) -> bool:
    """Whether the highest values of the signal since the rise are below `factor` of those before.

    Norms that are logged after they were clipped to one value do not show it.
    """
    points = context.history.get(signal, ())
    before = [value for step, value in points if step < divergence.earliest_onset]
    after = [value for step, value in points if step >= divergence.onset_step]
    if len(before) < MIN_VALUES_BACK or len(after) < MIN_VALUES_BACK or max(before) == max(after):
        return False
    usual, now = (median(sorted(values)[-MIN_VALUES_BACK:]) for values in (before, after))
    return now <= factor * usual


def slowdown_evidence(context: CaseContext, weight: float) -> Iterable[Evidence]:
    """A run that is slower than before, as evidence; nothing once it is as fast as usual."""
    drop = context.symptoms.get("throughput_drop")
    times = None if drop is None else drop.evidence.get("ratio_to_usual")
    if not isinstance(times, float | int) or times > 1.0:
        yield from symptom_evidence(drop, weight)


def waits_alone(context: CaseContext) -> bool:
    """Whether a single rank waits for data, by more than all of them do."""
    straggler, stall = context.symptoms.get("straggler"), context.symptoms.get("data_stall")
    if straggler is None or straggler.evidence.get("signal", "data_wait") != "data_wait":
        return False
    lag = straggler.evidence.get("median_lag_share_of_step_time")
    wait = None if stall is None else stall.evidence.get("data_wait_share")
    return not (isinstance(lag, float) and isinstance(wait, float)) or lag > wait


def possibly_first(symptom: Symptom, *others: Symptom | None, tolerance_steps: float = 0.0) -> bool:
    """Whether `symptom` can have begun before each of the others, or by then plus the tolerance.

    >>> from sentinel.model.finding import Severity
    >>> kl_rise = Symptom("kl_blowup", Severity.WARNING, 250, 262, "", onset_range=(246, 258))
    >>> fall = Symptom("reward_collapse", Severity.WARNING, 260, 264, "", onset_range=(252, 262))
    >>> possibly_first(kl_rise, fall, None), certainly_first(kl_rise, fall, None)
    (True, False)
    """
    return all(
        other is None or symptom.earliest_onset <= other.latest_onset + tolerance_steps
        for other in others
    )


def certainly_first(symptom: Symptom, *others: Symptom | None) -> bool:
    """Whether `symptom` began before each of the others: the intervals do not overlap."""
    return all(other is None or symptom.latest_onset < other.earliest_onset for other in others)


def weak_kl_control_evidence(context: CaseContext) -> Iterable[Evidence]:
    """Settings that allow a policy to move away from its reference, as evidence."""
    beta = context.number(*_KL_COEFFICIENT_KEYS)
    if beta is not None and beta < WEAK_KL_COEFFICIENT:
        yield Evidence(0.3, f"The KL coefficient is {beta:g}, which hardly constrains the policy.")
    rate = context.number("learning_rate") or context.values.get("learning_rate")
    factor = ADAPTER_FACTOR if has_adapters(context.metadata) else 1.0
    if rate is not None and rate > factor * FAST_LEARNING_RATE:
        yield Evidence(0.2, f"The learning rate is {rate:g}, high for training by reward.")


def is_rewarded_though_cut_off(truncation: Symptom | None) -> bool:
    """Whether the reward rises although hardly any completion ends, as the detector found."""
    return truncation is not None and "reward_before_truncation" in truncation.evidence


def stronger_kl_advice(context: CaseContext) -> str:
    """Advice on the KL coefficient, as in "the KL coefficient at 0.02 instead of 0.001"."""
    low, high = PUBLISHED_KL_COEFFICIENTS
    loss, reward = context.text("use_kl_loss"), context.text("use_kl_in_reward")
    if loss == "false" and reward != "true":
        # The coefficient is set, but the term is off.
        loss_term, term = (
            describe_setting(each, context.metadata) for each in ("KL loss term", "KL coefficient")
        )
        return f"{loss_term} enabled and {term} at {high:g}"
    is_in_reward = reward == "true" and loss != "true"
    term = describe_setting(
        "KL coefficient in the reward" if is_in_reward else "KL coefficient", context.metadata
    )
    beta = context.number(*_KL_COEFFICIENT_KEYS)
    if beta is None or beta < 0.0:
        term += " 2 to 5 times as high"
    elif beta < low:
        term += f" at {low if beta else high:g} instead of {beta:g}"
    else:
        term += f" at {2 * beta:g} to {5 * beta:g} instead of {beta:g}"
    if not is_in_reward:
        return term
    adaptive = describe_setting("adaptive KL control", context.metadata)
    return f"{term}, or with {adaptive} and a target of 0.1 nats per token"


def low_learning_rate_evidence(context: CaseContext) -> Iterable[Evidence]:
    """A learning rate below a hundredth of the declared one, as evidence."""
    rate, declared = context.values.get("learning_rate"), context.number("learning_rate") or 0.0
    if rate is not None and rate < 0.01 * declared:
        yield Evidence(0.4, f"The learning rate is {rate:.3g}; {declared:g} was declared.")
