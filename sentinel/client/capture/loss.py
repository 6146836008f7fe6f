"""The loss of a step: the sum of the scalars from which its backward passes started.

With gradient accumulation a step has several backward passes; the optimizer uses the gradient of
their sum. A sum of device scalars stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentinel.client.capture.scalars import RejectedValueError, number_or_reason

RAW_LOSS_ATTRIBUTE = "_sentinel_raw_loss"
"""Attribute of a scaled loss that holds the loss before scaling."""


@dataclass
class StepLoss:
    """The sum so far; `total` is None if a root could not be read."""

    total: Any = 0.0
    backward_passes: int = 0
    has_scaled_root: bool = False
    """A GradScaler scaled a loss in this step: a root without its raw loss is then unknown."""
    finished: bool = False
    """An optimizer stepped: the next backward pass starts a new sum."""
    before_pass: tuple[Any, int] | None = None
    """The sum and the count of passes before the current pass."""

    @property
    def has_new_pass(self) -> bool:
        """Whether a backward pass began since the last step of any optimizer."""
        return self.backward_passes > 0 and not self.finished

    def add(self, roots: list[Any]) -> None:
        """Add the roots of a backward pass that begins."""
        if self.finished:
            self._reset()
        self.before_pass = self.total, self.backward_passes
        self.backward_passes += 1
        try:
            for root in roots:
                loss = self._read_root(root)
                # A new tensor: a later in-place change of the loss must not change the sum.
                self.total = (
                    None if self.total is None else self.total + _to_device_of(self.total, loss)
                )
        except RejectedValueError:
            self.total = None

    def undo_pass(self) -> None:
        """Subtract the current pass, which failed, for example because memory ran out."""
        if self.before_pass is not None:
            self.total, self.backward_passes = self.before_pass
            self.before_pass = None

    def pop(self) -> Any:
        """The sum, or None; the next step starts from zero."""
        total = self.total if self.backward_passes else None
        self._reset()
        return total

    def _reset(self) -> None:
        self.total, self.backward_passes, self.finished, self.has_scaled_root = 0.0, 0, False, False
        self.before_pass = None

    def _read_root(self, root: Any) -> Any:
        raw = getattr(root, RAW_LOSS_ATTRIBUTE, None)
        if raw is None and self.has_scaled_root:
            raise RejectedValueError("type")
        number = number_or_reason(root if raw is None else raw)
        if type(number) is float:
            return number
        if type(number) is str:
            raise RejectedValueError(number)
        return number.float()


def _to_device_of(total: Any, value: Any) -> Any:
    """Move `value` to the device of `total`, for models on several devices."""
    if type(total) is float or type(value) is float or total.device == value.device:
        return value
    return value.to(total.device, non_blocking=True)
