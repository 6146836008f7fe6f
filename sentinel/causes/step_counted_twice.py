"""Step counted twice: the trainer's step counter advances more than once per update.

Everything that depends on the counter goes wrong together: `max_steps` is reached too early, the
schedule ends too early, and saves that should be hundreds of steps apart come every few steps. A
loop that does not stop at `max_steps` runs past it, and saves at every step from there on.

Evidence
    A stride of more than one step per update is the cause itself. Saves that are far too frequent,
    and a run that continues beyond its last step, are effects. A log does not hold the updates: in
    it, saves two or more steps apart that begin at the last step, or at a usual save if that is not
    known, show the stride, since each update is saved from there on.

Source
    huggingface/trl issue 2124: a trainer that incremented `global_step` a second time, so that
    saves came at 500, 1000, ... 4000 and then every 2 steps. TRL 0.12.1, rloo_trainer.py: the loop
    ends after its batches, which follow from `total_episodes`, as `max_steps` does. transformers
    4.46.3 and 5.23, DefaultFlowCallback.on_step_end: with `save_strategy="steps"`, every step from
    `max_steps` on is saved, whatever `save_steps` is.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.signals.setting_names import describe_setting

MAX_STRIDE = 10
"""Steps per update that a counter in an inner loop does not reach."""


class StepCountedTwice(StatedCause):
    """Diagnoses by the stride of the counter, and by its effects."""

    title = "step counter faster than the updates"
    explains = frozenset({
        "step_stride", "checkpoint_cadence", "step_regression", "learning_rate_anomaly",
    })  # fmt: skip
    sign = "the counter advances by 2 at a single call of the optimizer"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The stride and its effects; without it, only saves several steps apart past the end."""
        stride, saves = context.earliest("step_stride"), context.earliest("checkpoint_cadence")
        if stride is None and (saves is None or not _is_saved_at_each_update(context, saves)):
            return
        yield from weighted_evidence(context, {"step_stride": 0.8, "checkpoint_cadence": 0.6})
        if stride is None:
            weight = 0.2 if context.number("max_steps") is None else 0.3
            yield Evidence(weight, "Each update is saved since then, but not each step.")
            yield from weighted_evidence(context, {"step_regression": 0.3})
        yield from weighted_evidence(context, {"learning_rate_anomaly": 0.3})

    def remedy(self, context: CaseContext) -> str:
        """Find the second increment; until then, keep away from the last step."""
        framework = context.text("framework")
        upgrade = "TRL" if framework == "trl" else "the training library"
        fix = (
            f"Upgrade {upgrade}, or look for a second place that increments the step counter, such "
            "as a callback that adds to `state.global_step`: huggingface/trl issue 2124 was this. "
        )
        if framework not in _SAVES_FROM_LAST_STEP:
            return (
                f"{fix}Until then the schedule ends too early and saves come too often: stop the "
                "run before its last step, and watch the free space."
            )
        last_step = context.number("max_steps")
        is_past = last_step is not None and context.values.get("global_step", 0.0) >= last_step
        place = "`max_steps`" if last_step is None else f"step {last_step:.0f} (`max_steps`)"
        has_fixed_updates = context.text("algorithm") in _FIXED_UPDATES
        if not is_past and not has_fixed_updates:
            return (
                f"{fix}Until then the run ends at {place} with too few updates: to run it as it "
                "is, raise `max_steps` by the same factor."
            )
        stop = f"now: since {place}" if is_past else f"before {place}: from then on"
        settings = [describe_setting("checkpoint limit", context.metadata), '`save_strategy="no"`']
        settings += [] if has_fixed_updates else ["a higher `max_steps`"]
        return (
            f"{fix}Stop the run {stop} every step is saved, whatever the save interval is. To run "
            f"it as it is, set {', '.join(settings[:-1])} or {settings[-1]}."
        )


def _is_saved_at_each_update(context: CaseContext, saves: Symptom) -> bool:
    """Whether the saves are some steps apart from the last step on, or from a usual save."""
    interval, usual = (
        saves.evidence.get(name) for name in ("save_interval_steps", "usual_save_interval_steps")
    )
    if not isinstance(interval, float | int) or not isinstance(usual, float | int):
        return False
    last_step = context.number("max_steps")
    begin = saves.onset_step // usual * usual if last_step is None else last_step
    return (
        1.0 < interval < MAX_STRIDE
        and begin <= saves.onset_step <= begin + 2 * interval
        and context.text("framework") in {*_SAVES_FROM_LAST_STEP, ""}
    )


_SAVES_FROM_LAST_STEP = ("transformers", "trl")
"""Frameworks that save at every step from the last one on."""

_FIXED_UPDATES = ("rloo", "ppo")
"""Trainers of TRL whose loop does not end at `max_steps`.

Both the number of updates and `max_steps` follow from `total_episodes`, so no setting of these puts
the last step behind the end of the loop.
"""
