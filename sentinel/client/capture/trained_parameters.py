"""The parameters that the optimizers of one training update, by which another one is recognized.

An optimizer over none of them belongs to another training if those known so far are gone or take no
more steps. Optimizers that alternate, as those of a GAN, and one that is created anew over the same
model belong to one, unless its loss is another, a part of the model was replaced or its weights
were set. The parameters of earlier trainings stay known: an optimizer that returns to them shows
that the optimizers only take turns.

The optimizer of an engine such as DeepSpeed's holds copies of the parameters, or none between
steps: the engine gives those of the model. An optimizer without parameters shows nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sentinel.client.capture.owned_modules import existing


@dataclass
class TrainedParameters:
    """Weak references to parameters and optimizers, by their ids."""

    parameters: dict[int, tuple[Callable[[], Any], int]] = field(default_factory=dict)
    """Each with the number of its training."""
    number: int = 0
    optimizers: list[Callable[[], Any]] = field(default_factory=list)
    """Those that took a step since the training began, of which some may be of the next one."""
    model_parameters: weakref.WeakKeyDictionary[Any, list[Callable[[], Any]]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """The parameters of the model, by the optimizer that holds copies of them."""

    def set_parameters(self, optimizer: Any, parameters: Iterable[Any]) -> None:
        """Take these parameters of the model for those that the optimizer updates."""
        self.model_parameters[optimizer] = [weakref.ref(each) for each in parameters]

    def parameters_of(self, optimizer: Any) -> Iterator[Any]:
        """The parameters that the optimizer updates; none if that is not known."""
        if (known := self.model_parameters.get(optimizer)) is not None:
            return (each for each in (ref() for ref in known) if each is not None)
        return (each for group in optimizer.param_groups for each in group["params"])

    def first_parameter(self, optimizer: Any) -> Any:
        """The first parameter that the optimizer updates; the optimizer itself if none is known."""
        return next(self.parameters_of(optimizer), optimizer)

    def has_any(self, optimizer: Any) -> bool:
        """Whether the optimizer updates a parameter of this training or an earlier one."""
        return self._training_of(optimizer) is not None

    def is_of_earlier(self, optimizer: Any) -> bool:
        """Whether the optimizer updates parameters of an earlier training."""
        number = self._training_of(optimizer)
        return number is not None and number < self.number

    def _training_of(self, optimizer: Any) -> int | None:
        """The training of the first known parameter of the optimizer."""
        for each in self.parameters_of(optimizer):
            known, number = self.parameters.get(id(each), _UNKNOWN)
            if known() is each:
                return number
        return None

    def is_part_replaced(self, optimizer: Any) -> bool:
        """Whether it updates new parameters, and some of the training no longer exist."""
        is_any_gone = any(
            ref() is None and number == self.number for ref, number in self.parameters.values()
        )
        return is_any_gone and any(
            self.parameters.get(id(each), _UNKNOWN)[0]() is not each
            for each in self.parameters_of(optimizer)
        )

    def optimizers_in_use(self) -> list[Any]:
        """The optimizers of the training that took a step and still exist."""
        return existing(self.optimizers)

    def has_other(self, optimizer: Any) -> bool:
        """Whether another optimizer of the training, or one seen since it began, is in use."""
        return any(each() not in {None, optimizer} for each in self.optimizers)

    def note(self, optimizer: Any) -> None:
        """Remember that this optimizer took a step."""
        self.optimizers = [each for each in self.optimizers if each() not in {None, optimizer}]
        self.optimizers.append(weakref.ref(optimizer))

    def add(self, optimizer: Any) -> None:
        """Add the parameters of an optimizer of the training."""
        for each in self.parameters_of(optimizer):
            self.parameters[id(each)] = weakref.ref(each), self.number

    def add_noted(self) -> None:
        """Add those of every optimizer that took a step, since it alternates with a known one."""
        for optimizer in filter(None, [each() for each in self.optimizers]):
            if not self.has_any(optimizer):
                self.add(optimizer)

    def begin(self) -> None:
        """Begin another training, which no optimizer belongs to yet."""
        self.number += 1
        self.optimizers.clear()
        self.parameters = {key: own for key, own in self.parameters.items() if own[0]() is not None}

    def clear(self) -> None:
        """Forget all trainings."""
        self.parameters.clear()
        self.optimizers.clear()


_UNKNOWN: tuple[Callable[[], Any], int] = (lambda: None), 0
