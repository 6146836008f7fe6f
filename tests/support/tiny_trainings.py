"""Tiny trainings that really happen: a small model of a made-up language, on one core, in seconds.

What is wrong with them is wrong in earnest, so that nobody has to guess how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch.nn.functional import cross_entropy

from sentinel.model.record import Event, Record
from sentinel.testing import event

WORDS, WIDTH = 24, 48
GOOD = 3e-3
"""A learning rate at which it learns well."""

Pairs = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Training:
    """`records` trains it. What is wrong with it is what the caller asks for.

    `rate` gives the learning rate of a step. `labels` are true, random, those of a coin or masked.
    In the steps of `bad` inputs are out of all bounds, and labels nonsense. Of weights that are
    `frozen` none requires a gradient. With `examples` it sees only so many, again and again, and is
    evaluated on others. At the step `resumed` it begins again, without its optimizer's state.
    """

    count: int = 400
    rate: Callable[[int], float] = lambda _: GOOD
    labels: str = "true"
    bad: range = range(0)
    frozen: bool = False
    examples: int = 0
    resumed: int = 0
    dtype: torch.dtype = torch.float32
    seed: int = 0
    model: torch.nn.Sequential = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        # Each word likes some followers more than others: there is something to learn.
        self.language = torch.distributions.Dirichlet(torch.full((WORDS, WORDS), 0.15)).sample()
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(WORDS, WIDTH),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WORDS),
        ).to(self.dtype)
        self.model.requires_grad_(requires_grad=not self.frozen)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.known, self.held_out = self._spoken(self.examples or 1), self._spoken(512)

    def records(self) -> Iterator[Record]:
        """Train it, with the loss, gradient norm and learning rate of each step."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for step in range(1, self.count + 1):
                if step == self.resumed:
                    self.optimizer = torch.optim.Adam(self.model.parameters())
                    yield replace(event(Event.START, 0, time=float(step)), attempt=1)
                yield event(Event.STEP, step, time=float(step), **self._step(step))
                if self.examples and step % 20 == 0:
                    yield event(Event.EVAL, step, time=float(step), eval_loss=self._evaluate())
        finally:
            torch.set_num_threads(threads)

    def _step(self, step: int) -> dict[str, float]:
        rate = self.optimizer.param_groups[0]["lr"] = self.rate(step)
        words, follow = self.known if self.examples else self._spoken(64)
        entered = self.model[0](words)
        if self.frozen:
            # As gradient checkpointing has it: a graph there is, and no weight hangs on it.
            entered.requires_grad_()
        if step in self.bad:
            entered, follow = 30 * entered, torch.zeros_like(follow)
        loss = cross_entropy(self.model[1:](entered), self._labels(follow))
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), inf)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": float(norm), "learning_rate": rate}

    def _labels(self, follow: torch.Tensor) -> torch.Tensor:
        if self.labels == "masked":
            return torch.full_like(follow, -100)
        choices = {"random": WORDS, "coin": 2}.get(self.labels)
        return follow if choices is None else torch.randint(choices, follow.shape)

    def _spoken(self, count: int) -> Pairs:
        words = torch.randint(WORDS, (count,))
        return words, torch.multinomial(self.language[words], 1).squeeze(1)

    def _evaluate(self) -> float:
        words, follow = self.held_out
        with torch.no_grad():
            return cross_entropy(self.model(words), follow).item()
