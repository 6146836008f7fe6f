"""GradScaler: the loss before scaling, the scale, and the steps it leaves out.

Taps: `scale`, whose result remembers what it was made from; and `step`, which calls the optimizer
or does not. An optimizer that takes the scale itself (fused ones) is called in any case, and leaves
its step out on the device: those are counted there, without looking.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from sentinel.client.capture.loss import RAW
from sentinel.client.capture.patcher import Tap
from sentinel.model.record import Event

FRAMEWORK = "torch.amp.grad_scaler"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    scaler = sys.modules[FRAMEWORK].GradScaler
    tap.replace(scaler, "scale", lambda original: around_scale(tap, original))
    steps = _Steps(tap)
    tap.watch(scaler, "step", steps.before, steps.after)


def around_scale(tap: Tap, original: Any) -> Any:
    """A `scale` whose result remembers the loss."""
    torch = sys.modules["torch"]

    def remember(loss: Any, scaled: Any) -> None:
        # A scaler that is switched off gives back what it was given.
        if scaled is not loss and isinstance(loss, torch.Tensor):
            tap.loop.loss.scaled = True
            setattr(scaled, RAW, loss.detach())

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if not torch.compiler.is_compiling():
            tap.safely(remember, outputs, scaled)
        return scaled

    return scale


class _Steps:
    """Watches the scaler's steps, and counts those that were left out."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.skipped: Any = 0.0
        """A number, or, once a fused optimizer was seen, a scalar on its device."""
        self.begun = 0

    def before(self, scaler: Any, *_: Any, **__: Any) -> None:
        self.begun = self.tap.loop.begun
        if scaler.is_enabled():
            # Still as this step's gradients were scaled: `update` changes it in place.
            self.tap.loop.beside({"loss_scale": scaler._scale, "skipped_steps": self.skipped})  # noqa: SLF001

    def after(self, _: Any, scaler: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        if not scaler.is_enabled():
            return
        if self.tap.loop.begun == self.begun:
            self.skipped = self.skipped + 1.0
            # Not `hear`: this is no word on the step under way, which was not taken.
            self.tap.recorder.say(Event.STEP, None, {"skipped_steps": self.skipped})
            self.tap.loop.passed()
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            flags = [*scaler._found_inf_per_device(optimizer).values()]  # noqa: SLF001
            there = flags[0].device
            infinite = sum(flag.to(there, non_blocking=True) for flag in flags) > 0
            self.skipped = self.skipped + infinite.double()
