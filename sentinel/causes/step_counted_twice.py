"""Step counted twice: the trainer's step counter moves more than once per update.

Whatever hangs on the counter then goes wrong together: `max_steps` is passed early, the schedule
runs out, and saves that should be hundreds of steps apart come every few.

Clues
    A stride that is no longer that of the updates is the cause itself. Saves far more often than
    set, and a run that goes on behind its last step, follow from it.

Source
    huggingface/trl issue 2124: a trainer that advanced `global_step` by itself as well, so that
    saves came at 500, 1000, ... 4000 and then every 2 steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class StepCountedTwice:
    """Judges by the stride of the counter, and by what hangs on it."""

    title: ClassVar[str] = "step counter runs ahead of the updates"
    explains: ClassVar[frozenset[str]] = frozenset({
        "step_stride", "checkpoint_cadence", "step_regression", "learning_rate_anomaly",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The stride, and the saves; saves alone are another matter."""
        stride = context.earliest_symptom("step_stride")
        if stride is None:
            return
        yield from symptom_evidence(stride, 0.8)
        yield from symptom_evidence(context.earliest_symptom("checkpoint_cadence"), 0.6)
        yield from symptom_evidence(context.earliest_symptom("learning_rate_anomaly"), 0.3)

    def remedy(self, context: CaseContext) -> str:
        """Where to look, and what to hold until then."""
        upgrade = "TRL" if context.text("framework") == "trl" else "the training library"
        return (
            "Look for a second place that advances the step counter (a custom loop or callback "
            f"that adds to `state.global_step`), or upgrade {upgrade}: huggingface/trl issue 2124 "
            "was this. Until then the run ends early and its saves fill the disk: raise "
            f"{describe_setting('save interval', context.metadata)} and watch the space left."
        )
