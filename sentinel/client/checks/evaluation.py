"""Evaluation: whether the model is in training mode while it is evaluated.

An evaluation is a pass over other data than those of the training, during which the model computes
without gradients and takes no step, and after which the training goes on with its data. Dropout
that a function applies is looked at after `eval()`, whatever the data.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Self
from weakref import ref

from sentinel.client.capture.owned_modules import modules_of
from sentinel.client.checks.batches import batch_count
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.function_calls import LossCalls
from sentinel.client.checks.functional_dropout import DropoutCalls
from sentinel.client.checks.mode import modules_by_mode

PASSES_TO_JUDGE = 2
"""Forward passes of the model in one evaluation, each of another batch."""
FIRST_STEPS = 3
"""Steps after which a training without a batch of a data loader has none."""
MAX_OBSERVED_EVALUATIONS = 3
"""Evaluations in which the calls of dropout are observed."""


class EvaluationPasses(Check):
    """Looks at the mode of one module of the model in the first forward passes of an evaluation."""

    name: ClassVar[str] = "evaluation"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._trained: dict[int, Callable[[], Any]] = {}
        """Weak references to the data sets whose batches are trained on, by id."""
        self._fetched: Callable[[], Any] = lambda: None
        """That of the last batch."""
        self._mode: ForwardMode | None = None
        """What is observed of the evaluation that may have begun."""
        self._begun_at = 0
        """Steps when it began."""
        self._kinds = ""
        """The modules that acted as in training."""
        self._losses: LossCalls | None = None
        """Whether it computes a loss, if the training has no data loader."""
        self._calls: DropoutCalls | None = None
        self._observed_evaluations = 0

    def on_eval(self, module: Any) -> None:
        """A module is set to evaluation mode."""
        root = self.training.find_model()
        if (
            root is None
            or self._calls is not None
            or self._observed_evaluations == MAX_OBSERVED_EVALUATIONS
            or compiled_frames() != self.training.process.frames_before
        ):
            return
        modules = {id(each) for _, each in modules_of(root)}
        if id(module) in modules or any(each is root for _, each in modules_of(module)):
            self._observed_evaluations += 1
            self._calls = DropoutCalls(modules, self.training.process.count_error)

    def on_save(self) -> None:
        """A module that holds one of the functions could not be pickled while they are replaced."""
        self._end_calls()
        self._end_losses()

    def before_backward(self) -> None:
        """The batches before it are those of the training, unless all of them were evaluated."""
        self._end_calls()
        if not self._trained and self._mode is not None:
            has_loss = self._losses is not None and self._losses.found
            is_over = self._mode.is_over()
            is_wrong = self._judge()
            if is_over and has_loss and is_wrong is not None:
                self._set_result(is_wrong=is_wrong)
                self._fetched = lambda: None
        self._end()
        fetched = self._fetched()
        if fetched is not None:
            self._trained = {at: each for at, each in self._trained.items() if each() is not None}
            self._trained[id(fetched)] = self._fetched

    def on_fetch(self, iterator: Any, *, is_first: bool) -> None:
        """A batch of any pass over data arrived."""
        if self._calls is not None and self._calls.is_open:
            self._calls.batches += 1
        data = getattr(iterator, "_dataset", None)
        if data is None or not hasattr(data, "__weakref__"):
            return
        is_trained = self._is_trained(data)
        is_wrong = self._judge() if is_trained or is_first else None
        if is_trained and is_wrong is not None:
            # The training goes on with its data: rollouts, or pools, are followed by new ones.
            self._set_result(is_wrong=is_wrong)
        self._fetched = ref(data)
        # The data of a training come from elsewhere if no loader gave any.
        are_known = self._trained or self.training.steps >= FIRST_STEPS
        # A module must not be left with a hook after the last batch: it may be pickled then.
        if is_first and are_known and not is_trained and batch_count(iterator) > 1:
            self._begin(iterator)

    def _set_result(self, *, is_wrong: bool) -> None:
        if self.problem != "functional_dropout":
            evidence = {"kinds": self._kinds} if is_wrong else {}
            self.set_result("training_mode" if is_wrong else "", evidence)

    def _end_calls(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()
            if calls.found:
                self.set_result("functional_dropout", {"kind": calls.found})

    def _is_trained(self, data: Any) -> bool:
        known = self._trained.get(id(data))
        return known is not None and known() is data

    def _begin(self, iterator: Any) -> None:
        root = self.training.find_model()
        # A model that is compiled with a hook would be compiled again without it.
        if root is None or compiled_frames() != self.training.process.frames_before:
            return
        modules = modules_by_mode(root, {*map(id, self.training.parameters)})
        training = [each for each in modules if each.training] if root.training else []
        # Without momentum, or with one of 1, batch normalization computes its statistics anew.
        if modules and all(getattr(each, "momentum", 0.0) not in {None, 1.0} for each in modules):
            self._kinds = ", ".join(sorted({type(each).__name__ for each in training}))
            self._begun_at = self.training.steps
            self._mode = ForwardMode((training or modules)[0], ref(iterator))
            if not self._trained:
                self._losses = LossCalls(self.training.process.count_error)

    def _judge(self) -> bool | None:
        """Whether an evaluation that ended, without a step, was in training mode; None without."""
        mode = self._end()
        # Several passes of one batch are a sample of predictions, for which dropout is on.
        if (
            mode is None
            or len(mode.batches) < PASSES_TO_JUDGE
            or self.training.steps > self._begun_at
        ):
            return None
        return bool(self._kinds) and mode.training_passes == mode.passes

    def _end(self) -> ForwardMode | None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.handle.remove()
        self._end_losses()
        return mode

    def _end_losses(self) -> None:
        losses, self._losses = self._losses, None
        if losses is not None:
            losses.close()

    def close(self) -> None:
        """Leave no hook on the model."""
        self._end()
        if self._calls is not None:
            self._calls.close()


class ForwardMode:
    """A hook before the first forward passes of a module, which counts those in training mode.

    It counts passes without gradients that are not compiled, up to the first one with them. While
    it waits it can be pickled, copied and compiled.
    """

    def __init__(self, module: Any, find_iterator: Callable[[], Any]) -> None:
        self.passes = self.training_passes = 0
        self.batches: set[int] = set()
        """Numbers of the batches of these passes."""
        self.find_iterator = find_iterator
        self.handle = module.register_forward_pre_hook(self)

    def is_over(self) -> bool:
        """Whether the pass over the data has ended."""
        iterator = self.find_iterator()
        return iterator is None or getattr(iterator, "_num_yielded", 0) >= batch_count(iterator)

    def __call__(self, module: Any, _: Any) -> None:
        """The module begins a forward pass."""
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling():
            return
        is_training_step = torch.is_grad_enabled()
        if not is_training_step:
            self.passes += 1
            self.batches.add(getattr(self.find_iterator(), "_num_yielded", self.passes))
            self.training_passes += module.training
        if is_training_step or self.passes >= PASSES_TO_JUDGE:
            self.handle.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        """A file of the model has a hook of Python instead, which returns its second argument.

        It is read where sentinel is not installed.
        """
        return getattr, ({}, "get")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy, which removes itself from the copy of the module."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied


def compiled_frames() -> int:
    """Graphs that torch.compile has made in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters.get("stats", {}).get("unique_graphs", 0))
