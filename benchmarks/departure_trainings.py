"""Trainings of small networks, all seeds at once, with settings that a change can alter.

Each training returns the metrics of every seed by step. A network is a batch of weight matrices,
one per seed, so that an ensemble takes little longer than one training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

Metrics = dict[str, Tensor]
"""Values by seed and step."""


@dataclass(frozen=True)
class Training:
    """A task with its settings. From step `changes_at` on, `after` holds in place of them."""

    task: str = "classes"
    steps: int = 400
    rate: float = 0.05
    batch: int = 64
    width: int = 32
    momentum: float = 0.9
    decay: float = 0.0
    clip: float = 1.0
    label_noise: float = 0.1
    data_scale: float = 1.0
    entropy_bonus: float = 0.01
    task_seed: int = 0
    changes_at: int = 0
    after: dict[str, Any] = field(default_factory=dict)

    def at(self, step: int) -> Training:
        """The settings that hold at a step."""
        return replace(self, **self.after) if self.after and step >= self.changes_at else self

    def rate_at(self, progress: float) -> float:
        """The learning rate at a share of the steps: it rises for a twentieth, and falls."""
        return self.rate * min(1.0, 20 * progress) * (1 - 0.9 * progress)


class Ensemble:
    """Networks with one hidden layer, one per seed, trained by SGD with momentum."""

    def __init__(self, training: Training, inputs: int, outputs: int, seeds: list[int]) -> None:
        self.training, self.generators = training, [_generator(seed) for seed in seeds]
        sizes = ((inputs, training.width), (training.width, outputs))
        self.weights = [self.draw(*size).mul(size[0] ** -0.5).requires_grad_() for size in sizes]
        self.velocity = [torch.zeros_like(each) for each in self.weights]

    def draw(self, *size: int) -> Tensor:
        """Normal numbers, of each seed its own."""
        return torch.stack([torch.randn(*size, generator=each) for each in self.generators])

    def uniform(self, *size: int) -> Tensor:
        return torch.stack([torch.rand(*size, generator=each) for each in self.generators])

    def __call__(self, x: Tensor) -> Tensor:
        return torch.bmm(torch.tanh(torch.bmm(x, self.weights[0])), self.weights[1])

    def step(self, losses: Tensor, settings: Training, progress: float) -> Tensor:
        """One step down the losses; returns the norm of each seed's gradient."""
        gradients = torch.autograd.grad(losses.sum(), self.weights)
        norm = torch.stack([each.flatten(1).norm(dim=1) for each in gradients]).norm(dim=0)
        scale = (settings.clip / norm.clamp_min(1e-9)).clamp_max(1.0)
        rate = settings.rate_at(progress)
        with torch.no_grad():
            for weight, velocity, gradient in zip(
                self.weights, self.velocity, gradients, strict=True
            ):
                velocity.mul_(settings.momentum)
                velocity.add_(gradient * scale[:, None, None] + settings.decay * weight)
                weight.sub_(rate * velocity)
        return norm


def run(training: Training, seeds: list[int]) -> Metrics:
    """The metrics of a training of each seed."""
    logs: dict[str, list[Tensor]] = {}
    step = _TASKS[training.task](training, seeds)
    for number in range(training.steps):
        settings = training.at(number)
        progress = number / training.steps
        values = step(settings, progress)
        values["learning_rate"] = torch.full((len(seeds),), settings.rate_at(progress))
        for name, value in values.items():
            logs.setdefault(name, []).append(value.detach())
    return {name: torch.stack(each, dim=1) for name, each in logs.items()}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _classes(training: Training, seeds: list[int]) -> Any:
    """Classes of points by a fixed random network; some labels are wrong."""
    fixed = _generator(10_000 + training.task_seed)
    teacher = [torch.randn(16, 24, generator=fixed) / 4, torch.randn(24, 6, generator=fixed)]
    model = Ensemble(training, 16, 6, seeds)

    def step(settings: Training, progress: float) -> Metrics:
        x = model.draw(settings.batch, 16) * settings.data_scale
        truth = (torch.tanh(x @ teacher[0]) @ teacher[1]).argmax(-1)
        wrong = model.uniform(settings.batch) < settings.label_noise
        labels = torch.where(wrong, (6 * model.uniform(settings.batch)).long(), truth)
        scores = model(x)
        losses = torch.nn.functional.cross_entropy(
            scores.transpose(1, 2), labels, reduction="none"
        ).mean(1)
        accuracy = (scores.argmax(-1) == truth).float().mean(1)
        return {
            "loss": losses,
            "grad_norm": model.step(losses, settings, progress),
            "accuracy": accuracy,
        }

    return step


def _values(training: Training, seeds: list[int]) -> Any:
    """A smooth function with noise."""
    fixed = _generator(20_000 + training.task_seed)
    teacher = [torch.randn(8, 12, generator=fixed) / 2, torch.randn(12, 1, generator=fixed)]
    model = Ensemble(training, 8, 1, seeds)

    def step(settings: Training, progress: float) -> Metrics:
        x = model.draw(settings.batch, 8) * settings.data_scale
        noise = model.draw(settings.batch, 1) * settings.label_noise * 3
        target = torch.tanh(x @ teacher[0]) @ teacher[1] + noise
        losses = ((model(x) - target) ** 2).mean((1, 2))
        return {"loss": losses, "grad_norm": model.step(losses, settings, progress)}

    return step


def _policy(training: Training, seeds: list[int]) -> Any:
    """A policy of 8 actions, rewarded by a fixed function of its input; REINFORCE."""
    fixed = _generator(30_000 + training.task_seed)
    teacher = torch.randn(8, 8, generator=fixed)
    model = Ensemble(training, 8, 8, seeds)

    def step(settings: Training, progress: float) -> Metrics:
        x = model.draw(settings.batch, 8) * settings.data_scale
        chances = model(x).log_softmax(-1)
        thresholds = model.uniform(settings.batch)[..., None]
        actions = (chances.exp().cumsum(-1) < thresholds).sum(-1).clamp_max(7)
        best = (x @ teacher).argmax(-1)
        reward = (actions == best).float()
        wrong = model.uniform(settings.batch) < settings.label_noise
        reward = torch.where(wrong, 1 - reward, reward)
        advantage = reward - reward.mean(1, keepdim=True)
        taken = chances.gather(-1, actions[..., None])[..., 0]
        entropy = -(chances.exp() * chances).sum(-1).mean(1)
        losses = -(advantage * taken).mean(1) - settings.entropy_bonus * entropy
        return {
            "loss": losses,
            "reward": reward.mean(1),
            "entropy": entropy,
            "grad_norm": model.step(losses, settings, progress),
        }

    return step


def _tokens(training: Training, seeds: list[int]) -> Any:
    """The next of 16 symbols after the last two, in a fixed language."""
    fixed = _generator(40_000 + training.task_seed)
    language = (2 * torch.randn(16, 16, 16, generator=fixed)).softmax(-1)
    model = Ensemble(training, 32, 16, seeds)

    def step(settings: Training, progress: float) -> Metrics:
        pairs = (16 * model.uniform(settings.batch, 2)).long()
        chances = language[pairs[..., 0], pairs[..., 1]]
        thresholds = model.uniform(settings.batch)[..., None]
        following = (chances.cumsum(-1) < thresholds).sum(-1).clamp_max(15)
        wrong = model.uniform(settings.batch) < settings.label_noise
        following = torch.where(wrong, (16 * model.uniform(settings.batch)).long(), following)
        x = torch.nn.functional.one_hot(pairs, 16).float().flatten(2) * settings.data_scale
        losses = torch.nn.functional.cross_entropy(
            model(x).transpose(1, 2), following, reduction="none"
        ).mean(1)
        return {"loss": losses, "grad_norm": model.step(losses, settings, progress)}

    return step


_TASKS = {"classes": _classes, "values": _values, "policy": _policy, "tokens": _tokens}
