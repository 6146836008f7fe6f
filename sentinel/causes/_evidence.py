"""Evidence and remedies that several causes share."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.signals.setting_names import describe_setting

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
            describe_setting(each, context.metadata) for each in ("KL loss term", "KL coefficient")
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
