"""GradScaler: the loss before scaling, the scale, and the steps it leaves out.

Taps: `scale`, whose result remembers what it was made from; and `step`, which calls the optimizer
or does not. An optimizer that takes the scale itself (fused ones) is called in any case, and leaves
its step out on the device: those are counted there, without looking.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.capture.patcher import Patcher
from sentinel.model.record import Event

FRAMEWORK = "torch.amp.grad_scaler"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    scaler = sys.modules[FRAMEWORK].GradScaler
    patcher.replace(scaler, "scale", lambda original: wrap_scale(patcher, original))
    steps = _ScalerObserver(patcher)
    patcher.wrap(scaler, "step", steps.before_step, steps.after_step)


def wrap_scale(patcher: Patcher, original: Any) -> Any:
    """A `scale` whose result remembers the loss."""
    torch = sys.modules["torch"]

    def remember(loss: Any, scaled: Any) -> None:
        # A scaler that is switched off gives back what it was given.
        if scaled is not loss and isinstance(loss, torch.Tensor):
            patcher.loop.loss.has_scaled_root = True
            setattr(scaled, RAW_LOSS_ATTRIBUTE, loss.detach())

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if not torch.compiler.is_compiling():
            patcher.call_safely(remember, outputs, scaled)
        return scaled

    return scale


class _ScalerObserver:
    """Watches the scaler's steps, and counts those that were left out."""

    def __init__(self, patcher: Patcher) -> None:
        self.patcher = patcher
        self.skipped_steps: Any = 0.0
        """A number, or, once a fused optimizer was seen, a scalar on its device."""
        self.steps_begun_before = 0

    def before_step(self, scaler: Any, *_: Any, **__: Any) -> None:
        self.steps_begun_before = self.patcher.loop.begun_steps
        if scaler.is_enabled():
            # Still as this step's gradients were scaled: `update` changes it in place.
            self.patcher.loop.add_values(
                {"loss_scale": scaler._scale, "skipped_steps": self.skipped_steps}
            )

    def after_step(self, _: Any, scaler: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        if not scaler.is_enabled():
            return
        if self.patcher.loop.begun_steps == self.steps_begun_before:
            self.skipped_steps = self.skipped_steps + 1.0
            # Not `hear`: this is no word on the step under way, which was not taken.
            self.patcher.recorder.record_event(
                Event.STEP, None, {"skipped_steps": self.skipped_steps}
            )
            self.patcher.loop.on_uncounted_step()
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            flags = [*scaler._found_inf_per_device(optimizer).values()]  # noqa: SLF001
            there = flags[0].device
            infinite = sum(flag.to(there, non_blocking=True) for flag in flags) > 0
            self.skipped_steps = self.skipped_steps + infinite.double()
