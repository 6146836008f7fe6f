"""Step stride: the trainer's step counter moves further per optimizer step than it should.

Formula
    stride   = what `global_step` moved by, over what `optimizer_steps` moved by, between records
    usual    = 1 where the framework counts one for each optimizer step; else the stride of the
               first `proven` records, if it was the same in all of them
    Finding  = the stride is over usual by more than `tolerance` of it, `in_a_row` records running
    Calm     = once it is not, `in_a_row` records running

Units
    `tolerance`: share of 1. `proven`, `in_a_row`: records in which both counters moved.

Source
    huggingface/trl#2124: a counter moved in the inner loop as well. The learning rate ends its way
    too early, the run passes its end, and then everything that happens every so many steps happens
    all the time. Exact, not statistical; long before the first save that comes too soon.

Defaults
    `in_a_row` 4: a mixed-precision scaler that leaves an optimizer step out makes the next stride
    2, and two such in a row are rare, four unheard of. The counter of that report, of one, two and
    four epochs (strides 2, 1.5 and 1.25), is told at its fifth record in 3 of 3. `proven` 8. What
    never was steady, as a counter of games or of tokens, is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record

OPTIMIZER_STEP_FRAMEWORKS = frozenset({"transformers", "trl"})
"""Frameworks whose global_step counts optimizer steps, or fewer."""


@dataclass
class StepStride:
    """Judges `global_step` against the optimizer steps that the hook counts."""

    tolerance: float = 0.01
    proven: int = 8
    in_a_row: int = 4

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "global_step"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Look for a second place that adds to global_step, as an inner loop over epochs or "
        "mini-batches does (huggingface/trl#2124; mended in later versions). Until then the "
        "learning rate schedule, save_steps and max_steps all run too fast: stop before max_steps."
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
        """Judge one record of both counters."""
        if record.attributes.get("framework") in OPTIMIZER_STEP_FRAMEWORKS:
            self._expected_stride = 1.0
            self._usual_stride = self._usual_stride or 1.0
        if record.event is Event.START or "restarted_after_step" in record.values:
            self._reset()
        step, count = record.values.get("global_step"), record.values.get("optimizer_steps")
        if record.event is not Event.STEP or step is None or count is None:
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
        """Whether there is a usual stride to judge by; a run that has none never gets one."""
        if self._usual_stride or len(self._strides) > self.proven:
            return self._usual_stride > 0.0
        self._strides.append(stride)
        if len(self._strides) == self.proven:
            least, most = min(self._strides), max(self._strides)
            if most <= least * (1 + self.tolerance):
                self._usual_stride = least
            else:
                self._strides.append(stride)
        return False

    def _evaluate(self, stride: float, step: int) -> DetectorOutput:
        wrong = stride > self._usual_stride * (1 + self.tolerance)
        if wrong == self._is_wrong:
            self._change_count = 0
        else:
            if not self._change_count and wrong:
                self._onset_step = step
            self._change_count += 1
        if self._change_count >= self.in_a_row:
            self._is_wrong, self._change_count = wrong, 0
        if not self._is_wrong:
            return None if wrong else Clear()
        return Finding(
            summary=f"global_step moves by {stride:.3g} per optimizer step, "
            f"where {self._usual_stride:.3g} is right.",
            evidence={"stride": stride, "usual": self._usual_stride},
            onset_step=min(self._onset_step, step),
        )
