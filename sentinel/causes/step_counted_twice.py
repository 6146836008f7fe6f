"""Step counted twice: the trainer's step counter advances more than once per update.

Everything that depends on the counter goes wrong together: `max_steps` is reached too early, the
schedule ends too early, and saves that should be hundreds of steps apart come every few steps.

Evidence
    A stride of more than one step per update is the cause itself. Saves that are far too frequent,
    and a run that continues beyond its last step, are effects.

Source
    huggingface/trl issue 2124: a trainer that incremented `global_step` a second time, so that
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
    """Diagnoses by the stride of the counter, and by its effects."""

    title: ClassVar[str] = "step counter advances faster than the updates"
    explains: ClassVar[frozenset[str]] = frozenset({
        "step_stride", "checkpoint_cadence", "step_regression", "learning_rate_anomaly",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The stride and its effects; nothing for frequent saves alone."""
        stride = context.earliest("step_stride")
        if stride is None:
            return
        yield from symptom_evidence(stride, 0.8)
        yield from symptom_evidence(context.earliest("checkpoint_cadence"), 0.6)
        yield from symptom_evidence(context.earliest("learning_rate_anomaly"), 0.3)

    def remedy(self, context: CaseContext) -> str:
        """Find the second increment; save less often until then."""
        upgrade = "TRL" if context.text("framework") == "trl" else "the training library"
        return (
            "Look for a second place that increments the step counter (a custom loop or callback "
            f"that adds to `state.global_step`), or upgrade {upgrade}: huggingface/trl issue 2124 "
            "was this. Until then the run ends too early and its saves fill the disk: raise "
            f"{describe_setting('save interval', context.metadata)} and watch the free space."
        )
