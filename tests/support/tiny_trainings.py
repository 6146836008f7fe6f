"""Small real trainings: a language model of an artificial language, on one core, in seconds.

Their faults are real faults, not simulated values.
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
GOOD_LEARNING_RATE = 3e-3
"""A learning rate at which the model learns well."""

Pairs = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Training:
    """A training of `count` steps with selectable faults; `records` runs it.

    `rate` returns the learning rate of a step. `labels` is "true", "random", "coin" (two random
    labels) or "masked". In the steps of `bad`, inputs are out of range and labels are wrong. With
    `frozen`, no weight requires a gradient. With `examples` > 0, the model trains repeatedly on
    that many examples and is evaluated on others. At step `resumed` it restarts without the state
    of its optimizer.
    """

    count: int = 400
    rate: Callable[[int], float] = lambda _: GOOD_LEARNING_RATE
    labels: str = "true"
    bad: range = range(0)
    frozen: bool = False
    examples: int = 0
    resumed: int = 0
    dtype: torch.dtype = torch.float32
    seed: int = 0
    model: torch.nn.Sequential = field(init=False)

    def _build(self) -> None:
        # Not when it is made, which is when tests are collected: an optimizer imports the compiler.
        torch.manual_seed(self.seed)
        # Some successors of a word are more likely than others, so there is something to learn.
        self.language = torch.distributions.Dirichlet(torch.full((WORDS, WORDS), 0.15)).sample()
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(WORDS, WIDTH),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WORDS),
        ).to(self.dtype)
        self.model.requires_grad_(requires_grad=not self.frozen)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.training_pairs, self.held_out_pairs = (
            self._sample_pairs(self.examples or 1),
            self._sample_pairs(512),
        )

    def records(self) -> Iterator[Record]:
        """Train it, with the loss, gradient norm and learning rate of each step."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._build()
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
        words, labels = self.training_pairs if self.examples else self._sample_pairs(64)
        embedded = self.model[0](words)
        if self.frozen:
            # As with gradient checkpointing: there is a graph, but no weight belongs to it.
            embedded.requires_grad_()
        if step in self.bad:
            embedded, labels = 30 * embedded, torch.zeros_like(labels)
        loss = cross_entropy(self.model[1:](embedded), self._labels(labels))
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), inf)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": float(norm), "learning_rate": rate}

    def _labels(self, labels: torch.Tensor) -> torch.Tensor:
        if self.labels == "masked":
            return torch.full_like(labels, -100)
        choices = {"random": WORDS, "coin": 2}.get(self.labels)
        return labels if choices is None else torch.randint(choices, labels.shape)

    def _sample_pairs(self, count: int) -> Pairs:
        words = torch.randint(WORDS, (count,))
        return words, torch.multinomial(self.language[words], 1).squeeze(1)

    def _evaluate(self) -> float:
        words, labels = self.held_out_pairs
        with torch.no_grad():
            return cross_entropy(self.model(words), labels).item()
