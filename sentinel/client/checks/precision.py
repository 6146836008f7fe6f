"""Precision: whether low precision is in force where it is asked for.

The graph of a backward pass has the type of each result of the forward pass. A gradient scaler has
no use without low precision, and an autocast around the backward pass alone has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.weights import graph_nodes

PASSES_TO_JUDGE = 3
"""Backward passes in a row that show low precision, or none."""
PRODUCTS = ("Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "Convolution", "ScaledDotProduct")
"""Beginnings of the names of operations that autocast computes in low precision."""


class Precision(Check):
    """Looks for a number in low precision in the graphs of the first passes that ask for it."""

    name: ClassVar[str] = "precision"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._framework = ""
        """The framework that runs the next backward pass, if it is to use low precision."""

    def on_framework_backward(self, framework: str, precision: str) -> None:
        """A framework runs the next backward pass, at a precision such as `bf16`."""
        self._framework = framework if precision in {"fp16", "bf16"} else ""

    def before_backward(self) -> None:
        """Look at the graph, if low precision is asked for."""
        framework, self._framework = self._framework, ""
        if self.problem is not None or not self.training.roots:
            return
        root, asked = self.training.roots[0], self.training.process.autocast_devices
        if hasattr(root, RAW_LOSS_ATTRIBUTE):
            reason = "a GradScaler is used"
        elif framework:
            reason = f"{framework} is to use mixed precision"
        elif is_autocast_active(root.device.type):
            reason = "autocast is active in the backward pass"
        elif asked and root.device.type not in asked:
            devices = " and ".join(f"`{each}`" for each in sorted(asked))
            reason = f"autocast is used for {devices}, and the loss is on `{root.device.type}`"
        else:
            return
        has_low = has_low_precision(each.grad_fn for each in self.training.roots)
        if has_low is not None:
            self.count(is_wrong=not has_low)
        if self.wrong_count >= PASSES_TO_JUDGE:
            self.set_result("autocast_not_in_force", {"reason": reason})
        elif self.right_count >= PASSES_TO_JUDGE:
            self.set_result("")


def is_autocast_active(device_type: str) -> bool:
    """Whether operations on such a device are computed under autocast now."""
    torch = sys.modules["torch"]
    try:
        return bool(torch.is_autocast_enabled(device_type))
    except RuntimeError:
        # There is no autocast for such a device.
        return False
    except TypeError:
        # PyTorch before 2.4.
        is_cpu = device_type == "cpu"
        return bool(torch.is_autocast_cpu_enabled() if is_cpu else torch.is_autocast_enabled())


def has_low_precision(nodes: Iterable[Any]) -> bool | None:
    """Whether a result of the forward pass that led to these nodes has at most 16 bits.

    None if there is none and no product in float32 either, or if a function of Python, as of a
    compiled model or of checkpointing, hides a part of the graph.
    """
    torch = sys.modules["torch"]
    low = {torch.float16, torch.bfloat16}
    has_product = False
    for node in graph_nodes(nodes):
        types = {getattr(each, "dtype", None) for each in getattr(node, "_input_metadata", ())}
        if not low.isdisjoint(types):
            return True
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return None
        has_product |= torch.float32 in types and type(node).__name__.startswith(PRODUCTS)
    return False if has_product else None
