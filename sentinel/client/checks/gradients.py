"""Gradients: whether they are cleared between two updates.

PyTorch counts the writes into a tensor. A gradient that the training clears is None, another tensor
or written outside a backward pass. Elements are read only before a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.checks.check import Check, CheckedTraining

UPDATES_TO_JUDGE = 3
"""Updates in a row without, or with, a gradient that was cleared."""
READ_ELEMENTS = 4096
"""Elements of the gradient that are read before it is reported."""


class GradientClearing(Check):
    """Follows the gradient of one parameter from the end of an update to the next one."""

    name: ClassVar[str] = "gradients"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._find_parameter: Callable[[], Any] = lambda: None
        self._gradient: Callable[[], Any] | None = None
        """Weak reference to the gradient of the last update, if it is followed."""
        self._version = -1
        """Writes into it up to the last update or backward pass."""
        self._is_cleared = self._is_written = self._is_zero = False

    def before_backward(self) -> None:
        """Whether the gradient was cleared since the last update or pass."""
        gradient = self._current()
        version = write_count(gradient)
        if self._gradient is not None and self._gradient() is gradient:
            self._is_cleared |= version != self._version
            if self.wrong_count == UPDATES_TO_JUDGE - 1 and not self._is_written:
                self._read(gradient)
        else:
            self._is_cleared = True
        self._version = version

    def after_backward(self) -> None:
        """Do not count the writes of the pass."""
        version = write_count(self._current())
        self._is_written |= version != self._version
        self._version = version

    def after_step(self) -> None:
        """Judge the update, and remember its gradient."""
        if self._gradient is not None and self._is_written:
            self._judge()
        self._is_cleared, self._is_written, self._gradient = False, False, None
        if self._current() is None:
            self._find_parameter = find_with_gradient(self.training.parameters)
        gradient = self._current()
        if gradient is not None and is_plain(gradient):
            self._gradient, self._version = ref(gradient), write_count(gradient)

    def _read(self, gradient: Any) -> None:
        """Read some elements: `.data` and NumPy clear a gradient without a write that counts."""
        self._is_zero = True

        def deliver(numbers: list[float]) -> None:
            self._is_zero = not numbers[0]

        elements = gradient.detach().flatten()[:READ_ELEMENTS]
        self.training.read_vector((elements != 0).sum().float().reshape(1), deliver)

    def _judge(self) -> None:
        self.count(is_wrong=not self._is_cleared)
        if self.wrong_count >= UPDATES_TO_JUDGE and not self._is_zero:
            self.set_result("not_cleared", {"updates": float(self.wrong_count)})
        elif self.right_count >= UPDATES_TO_JUDGE:
            self.set_result("")

    def _current(self) -> Any:
        parameter = self._find_parameter()
        return None if parameter is None else parameter.grad


def find_with_gradient(parameters: Iterable[Any]) -> Callable[[], Any]:
    """A weak reference to the first of the parameters that has a gradient, if one has."""
    parameter = next((each for each in parameters if each.grad is not None), None)
    return (lambda: None) if parameter is None else ref(parameter)


def write_count(tensor: Any) -> int:
    """The writes into the tensor; -1 if there is none."""
    return -1 if tensor is None else tensor._version  # noqa: SLF001 - there is no public name


def is_plain(gradient: Any) -> bool:
    """Whether PyTorch counts the writes: not those of sharded or inference tensors."""
    return not hasattr(gradient, "placements") and not gradient.is_inference()
