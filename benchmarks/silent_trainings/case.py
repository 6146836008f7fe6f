"""The error of a training: where it was reported, and the reason that has to be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

CASES: dict[str, Case] = {}
"""Those of all modules that are imported, by the name of their function."""
HEALTHY_TRAININGS: dict[str, Case] = {}
"""Those without an error that are no twin of one."""


@dataclass(frozen=True)
class Case:
    """A training with an error, and what is expected of its monitor.

    `reasons` are the acceptable ones: a cause, a detector, or a detector and its problem joined by
    a slash. None is accepted if it is empty, because no detector looks for the error. `begins` is
    the step before the first one with the error. `published` is its name in the set of TrainCheck,
    if it has one.
    """

    train: Callable[..., None]
    source: str
    reasons: tuple[str, ...]
    published: str = ""
    ranks: int = 1
    begins: int = 0

    @property
    def error(self) -> str:
        """The error, in a sentence."""
        return (self.train.__doc__ or "").splitlines()[0]


@dataclass(frozen=True)
class NotReproduced:
    """A published error that is not reproduced here, and why."""

    error: str
    source: str
    why: str


def case(
    source: str, *reasons: str, published: str = "", ranks: int = 1, begins: int = 0
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a training whose docstring is its error."""

    def add(train: Callable[..., None]) -> Callable[..., None]:
        assert train.__name__ not in CASES
        CASES[train.__name__] = Case(train, source, reasons, published, ranks, begins)
        return train

    return add


def healthy_case(train: Callable[[], None], ranks: int = 1) -> Case:
    """A training without an error; its source is the module that has it."""

    def run(*, sick: bool) -> None:
        assert not sick
        train()

    return Case(run, train.__module__, (), ranks=ranks)


def healthy(train: Callable[[], None], *, name: str = "", ranks: int = 1) -> Callable[[], None]:
    """Decorates a training without an error."""
    name = name or train.__name__
    assert name not in HEALTHY_TRAININGS
    HEALTHY_TRAININGS[name] = healthy_case(train, ranks)
    return train


def healthy_on(ranks: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorates a training without an error on several ranks."""
    return partial(healthy, ranks=ranks)
