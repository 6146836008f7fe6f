"""GradScaler: the loss before scaling, the scale, and skipped steps.

Patches `scale`, whose result keeps a reference to the unscaled loss, and `step`, which may skip the
optimizer's step. A fused optimizer that applies the scale itself is always called and skips its
step on the device; these steps are counted on the device, without synchronization.
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
    """Install the patches."""
    scaler = sys.modules[FRAMEWORK].GradScaler
    patcher.replace(scaler, "scale", lambda original: wrap_scale(patcher, original))
    observer = _ScalerObserver(patcher)
    patcher.wrap(scaler, "step", observer.before_step, observer.after_step)


def wrap_scale(patcher: Patcher, original: Any) -> Any:
    """A `scale` that stores the unscaled loss on its result."""
    torch = sys.modules["torch"]

    def remember(loss: Any, scaled: Any) -> None:
        # A disabled scaler returns its argument.
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
    """Observes the scaler's steps and counts skipped ones."""

    def __init__(self, patcher: Patcher) -> None:
        self.patcher = patcher
        self.skipped_steps: Any = 0.0
        """A float or, after a step of a fused optimizer, a scalar tensor on its device."""
        self.steps_begun_before = 0

    def before_step(self, scaler: Any, *_: Any, **__: Any) -> None:
        self.steps_begun_before = self.patcher.loop.begun_steps
        if scaler.is_enabled() and not self.patcher.loop.is_search:
            # Read before `update`, which changes the scale in place.
            scale = scaler._scale  # noqa: SLF001 - `get_scale` would synchronize with the device
            self.patcher.loop.add_values({"loss_scale": scale, "skipped_steps": self.skipped_steps})

    def after_step(self, _: Any, scaler: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        if not scaler.is_enabled():
            return
        if self.patcher.loop.is_search:
            self.patcher.loop.on_uncounted_step()
            return
        is_skipped = self.patcher.loop.begun_steps == self.steps_begun_before
        is_fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if self.patcher.loop.checks is not None and (is_skipped or not is_fused):
            self.patcher.loop.checks.scaler_steps.add(scaler, optimizer, is_skipped=is_skipped)
        if is_skipped:
            self.skipped_steps = self.skipped_steps + 1.0
            # Recorded directly, since the values do not belong to a completed step.
            self.patcher.recorder.record_event(
                Event.STEP, None, {"skipped_steps": self.skipped_steps}
            )
            self.patcher.loop.on_uncounted_step()
        elif is_fused:
            flags = [*scaler._found_inf_per_device(optimizer).values()]  # noqa: SLF001
            device = flags[0].device
            infinite = sum(flag.to(device, non_blocking=True) for flag in flags) > 0
            self.skipped_steps = self.skipped_steps + infinite.double()
