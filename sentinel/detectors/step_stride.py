"""Step counter too fast: the trainer's step counter advances too far per optimizer step.

Formula
    stride   = change of `global_step` over change of `optimizer_steps` between two records
    usual    = 1 if the framework counts one step per optimizer step; otherwise the stride of the
               first `proven` records, if it was the same in all of them
    Finding  = the stride exceeds usual by more than `tolerance` of it in `in_a_row` consecutive
               records
    Clear    = after `in_a_row` consecutive records without

Units
    `tolerance`: fraction of 1. `proven`, `in_a_row`: records in which both counters changed.

Source
    huggingface/trl#2124: a counter advanced in the inner loop as well. The learning-rate schedule
    ends too early, the run passes its end, and then everything that happens every n steps happens
    at every step. The rule is exact, not statistical, and fires long before the first early save.

Defaults
    `in_a_row` 4: a mixed-precision scaler that skips an optimizer step makes the next stride 2; two
    such in a row are rare, four unknown. The counter of that report, with one, two and four epochs
    (strides 2, 1.5 and 1.25), is found at its fifth record in 3 of 3. `proven` 8. A counter that
    was never regular, such as one of games or tokens, is not evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope
from sentinel.model.record import START, STEP, Record

OPTIMIZER_STEP_FRAMEWORKS = frozenset({"transformers", "trl"})
"""Frameworks whose global_step counts optimizer steps, or fewer."""


@dataclass
class StepStride(DetectorDefaults):
    """Evaluates `global_step` against the optimizer steps that the client counts."""

    tolerance: float = 0.01
    proven: int = 8
    in_a_row: int = 4

    steps_with = frozenset({"optimizer_steps", "restarted_after_step"})
    signal = "global_step"
    scope = Scope.TRAINING
    remedy = (
        "Look for a second place that increments the step counter, such as an inner loop over "
        "epochs or mini-batches (huggingface/trl#2124), and upgrade the training library. Stop "
        "the run before its counter reaches {maximum number of steps}."
    )

    def __post_init__(self) -> None:
        self._expected_stride = 0.0
        self._reset()

    def _reset(self) -> None:
        self._last_counters: tuple[float, float] | None = None
        self._usual_stride = self._expected_stride
        self._strides: list[float] = []
        self._change_count = 0
        self._onset_step = 0
        self._is_wrong = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record of both counters."""
        if record.attributes.get("framework") in OPTIMIZER_STEP_FRAMEWORKS:
            self._expected_stride = 1.0
            self._usual_stride = self._usual_stride or 1.0
        if record.event is START or "restarted_after_step" in record.values:
            self._reset()
        step, count = record.values.get("global_step"), record.values.get("optimizer_steps")
        if record.event is not STEP or step is None or count is None:
            return None
        stride = self._next_stride(step, count)
        if stride is None or not self._has_usual_stride(stride):
            return None
        return self._evaluate(stride, record.step)

    def _next_stride(self, step: float, optimizer_steps: float) -> float | None:
        last, self._last_counters = self._last_counters, (step, optimizer_steps)
        if last is None or optimizer_steps <= last[1] or step < last[0]:
            return None
        stride = (step - last[0]) / (optimizer_steps - last[1])
        return stride if stride - stride == 0.0 else None

    def _has_usual_stride(self, stride: float) -> bool:
        """Whether the usual stride is known; an irregular counter never has one."""
        if self._usual_stride or len(self._strides) > self.proven:
            return self._usual_stride > 0.0
        self._strides.append(stride)
        if len(self._strides) == self.proven:
            lowest, highest = min(self._strides), max(self._strides)
            if highest <= lowest * (1 + self.tolerance):
                self._usual_stride = lowest
            else:
                self._strides.append(stride)
        return False

    def _evaluate(self, stride: float, step: int) -> DetectorOutput:
        is_wrong = stride > self._usual_stride * (1 + self.tolerance)
        if is_wrong == self._is_wrong:
            self._change_count = 0
        else:
            if not self._change_count and is_wrong:
                self._onset_step = step
            self._change_count += 1
        if self._change_count >= self.in_a_row:
            self._is_wrong, self._change_count = is_wrong, 0
        if not self._is_wrong:
            return None if is_wrong else CLEAR
        return Finding(
            summary=f"The trainer's step counter advances by {stride:.3g} per optimizer step "
            f"instead of by {self._usual_stride:.3g}.",
            evidence={
                "counted_steps_per_update": stride,
                "expected_steps_per_update": self._usual_stride,
            },
            onset_step=min(self._onset_step, step),
        )
