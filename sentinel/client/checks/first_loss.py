"""First loss: whether a policy begins as its reference, which the loss of preferences then shows.

The loss of DPO is a logarithm of a sigmoid of how much more the policy prefers an answer than its
reference does. Before the first update both give the same probabilities, and the loss is ln 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Any, ClassVar

from sentinel.client.capture.owned_modules import named_parameters
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.weights import parameter_rates

LOSS_NODES = 8
"""Operations from the root of a loss, among which the logarithm of a sigmoid is looked for."""
SCORE_NODES = 16
"""Operations before the logarithm, among which the scores of a reference are subtracted."""
MAX_FACTOR = 64
"""A sum over so many examples, or a division by so many passes, is the loss as well."""
TOLERANCE = 0.02
"""Share of the expected loss that dropout and low precision may change it by."""
EXACT_TOLERANCE = 1e-6
"""The same where policy and reference are one model, in float32."""
MIN_PATH = 1e-4
"""Product of the learning rate and the steps so far that changes a loss by more than that."""
LOSSES_TO_JUDGE = 3
"""Later losses in a row."""


class FirstLoss(Check):
    """Compares the loss of the first backward pass with ln 2, if the process has a reference.

    A loss that is still ln 2 when the weights have changed is that of a reference which changes
    with them.
    """

    name: ClassVar[str] = "first_loss"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._has_other_model = self._is_exact = False
        """Whether there is a reference, and whether the first loss is ln 2 to the last digits."""
        self._later_loss: Any = None

    def on_begin(self) -> None:
        """Forget the loss where another one is expected."""
        if self.training.is_resumed:
            self.training.first_preference_loss = None
        elif self.training.first_preference_loss is not None:
            self._has_other_model = self._has_reference()

    def before_backward(self) -> None:
        """Note the loss, if the steps so far should have changed it."""
        if not self._is_exact or self._later_loss is not None or not self.training.roots:
            return
        rate = max(parameter_rates(self.training.find_optimizer()), default=0.0)
        if rate * self.training.steps >= MIN_PATH:
            self._later_loss = self.training.roots[0].detach().clone()

    def after_step(self) -> None:
        """Read a loss, as soon as no other vector of its device is in flight."""
        loss = self.training.first_preference_loss
        if loss is not None and self.training.read_vector(loss.reshape(1).float(), self._judge):
            self.training.first_preference_loss = None
        loss = self._later_loss
        if loss is not None and self.training.read_vector(
            loss.reshape(1).float(), self._judge_later
        ):
            self._later_loss = None

    def _has_reference(self) -> bool:
        """Whether another model, frozen or in evaluation mode, has all shapes that are trained."""
        trained = Counter(each.shape for each in self.training.parameters)
        ids = {*map(id, self.training.parameters)}
        # TRL's reference is in evaluation mode, and not frozen.
        models = (
            (each.training, [weight for _, weight in named_parameters(each)])
            for each in self.training.process.seen_modules.modules()
        )
        return any(
            trained <= Counter(each.shape for each in weights)
            and not any(id(each) in ids or (is_trained and each.requires_grad) for each in weights)
            for is_trained, weights in models
        )

    def _judge(self, numbers: Sequence[float]) -> None:
        difference = _difference_from_start(numbers[0])
        self._is_exact = difference <= EXACT_TOLERANCE
        if self._has_other_model:
            is_equal = difference <= TOLERANCE
            self.set_result("" if is_equal else "policy_differs", {"loss": numbers[0]})

    def _judge_later(self, numbers: Sequence[float]) -> None:
        self._is_exact = _difference_from_start(numbers[0]) <= EXACT_TOLERANCE
        self.count(is_wrong=self._is_exact)
        if self.wrong_count >= LOSSES_TO_JUDGE:
            self._is_exact = False
            self.set_result("reference_follows", {"updates": float(self.training.steps)})


def _difference_from_start(loss: float) -> float:
    """The share by which a loss differs from ln 2, its nearest multiple or its nearest part."""
    factor = max(loss / log(2.0), 1e-9)
    whole = round(factor) if factor > 1.0 else 1.0 / round(1.0 / factor)
    return abs(factor / whole - 1.0) if whole >= 1.0 / MAX_FACTOR else 1.0


def is_preference_loss(root: Any) -> bool:
    """Whether a loss is of logarithms of sigmoids alone, of scores beside a reference, as DPO's.

    Models of rewards, and contrastive ones, have the first without the second.
    """
    node = root.grad_fn
    for _ in range(LOSS_NODES):
        name = "" if node is None else type(node).__name__
        if "LogSigmoid" in name:
            return _has_reference_scores(node)
        inputs = [] if node is None else [each for each, _ in node.next_functions if each]
        if name.startswith("Add") and len(inputs) > 1:
            # Another loss is added; a sum may begin at 0.
            return False
        node = inputs[0] if inputs else None
    return False


def _has_reference_scores(node: Any) -> bool:
    """Whether something without a gradient is subtracted before this node."""
    pending = [node]
    for _ in range(SCORE_NODES):
        if not pending:
            return False
        current = pending.pop(0)
        inputs = [each for each, _ in current.next_functions]
        if None in inputs and type(current).__name__.startswith("Sub"):
            return True
        if not _has_signs(current):
            pending += [each for each in inputs if each is not None]
    return False


def _has_signs(node: Any) -> bool:
    """Whether it multiplies by a tensor without a gradient, as by labels of +1 and -1."""
    saved = (getattr(node, name, None) for name in ("_saved_self", "_saved_other"))
    return type(node).__name__.startswith("Mul") and any(
        each is not None and each.numel() > 1 and not each.requires_grad for each in saved
    )
