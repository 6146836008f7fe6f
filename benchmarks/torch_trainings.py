"""Trainings with plain PyTorch: a GAN, an image classifier, PPO. Each logs one dict per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Log = Callable[[int, dict[str, float]], None]


@dataclass
class State:
    """The log of a training, written as JSON Lines."""

    lines: list[dict[str, float]] = field(default_factory=list)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.lines.append({"step": step, **values})


@dataclass
class Loop:
    """A training that logs to `state`."""

    run: Callable[[Log], None]
    state: State = field(default_factory=State)

    def train(self) -> None:
        self.run(self.state.log)


def _mlp(inputs: int, outputs: int, width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def _norm(model: nn.Module) -> float:
    return float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))


def gan(rate: float = 1e-3, discriminator_rate: float = 1e-3, count: int = 1500) -> Loop:
    """Points on a ring; a discriminator that learns too fast leaves nothing to the generator."""

    def run(log: Log) -> None:
        generator, discriminator = _mlp(4, 2), _mlp(2, 1)
        betas = (0.5, 0.9)
        optimizers = [
            torch.optim.Adam(generator.parameters(), lr=rate, betas=betas),
            torch.optim.Adam(discriminator.parameters(), lr=discriminator_rate, betas=betas),
        ]
        one, zero = torch.ones(64, 1), torch.zeros(64, 1)
        compare = nn.functional.binary_cross_entropy_with_logits
        for step in range(1, count + 1):
            angle = torch.rand(64) * 2 * torch.pi
            real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
            made = generator(torch.randn(64, 4))
            loss_d = compare(discriminator(real), one) + compare(discriminator(made.detach()), zero)
            optimizers[1].zero_grad()
            loss_d.backward()
            optimizers[1].step()
            loss_g = compare(discriminator(made), one)
            optimizers[0].zero_grad()
            loss_g.backward()
            norm = _norm(generator)
            optimizers[0].step()
            if step % 5 == 0:
                log(step, {"loss_D": loss_d.item(), "loss_G": loss_g.item(), "grad_norm": norm})

    return Loop(run)


def _images(count: int) -> tuple[Tensor, Tensor]:
    """Images of 8 by 8 with a bar, in four directions, and noise."""
    labels = torch.randint(4, (count,))
    images = 0.7 * torch.randn(count, 1, 8, 8)
    place = torch.randint(1, 7, (count,))
    for index, (label, at) in enumerate(zip(labels.tolist(), place.tolist(), strict=True)):
        line = torch.arange(8)
        row, column = [(at, line), (line, at), (line, line), (line, 7 - line)][label]
        images[index, 0, row, column] += 1.5
    return images, labels


def vision(
    rate: float = 3e-3,
    *,
    shuffled: bool = False,
    images: int = 4096,
    overflows: bool = False,
    frozen: bool = False,
) -> Loop:
    """A classifier of bars.

    `shuffled` labels belong to other images; few `images` are memorised; with `overflows` the loss
    scale of half precision doubles without a check; `frozen` hands no weight to the optimizer.
    """

    def run(log: Log) -> None:
        data, labels = _images(images)
        held_out, held_out_labels = _images(256)
        if shuffled:
            labels = labels[torch.randperm(images)]
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(256, 4),
        )  # fmt: skip
        spare = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([spare] if frozen else model.parameters(), lr=rate)
        compare = nn.functional.cross_entropy
        for step in range(1, 401):
            chosen = torch.randint(images, (32,))
            scale = 256.0 * 2.0 ** (step // 20) if overflows else 1.0
            logits = model(data[chosen])
            loss = compare(logits, labels[chosen])
            optimizer.zero_grad()
            scaled = (loss * scale).half().float() if overflows else loss
            scaled.backward()
            for parameter in model.parameters():
                _unscale(parameter, scale, is_half=overflows)
            norm = _norm(model)
            optimizer.step()
            accuracy = float((logits.argmax(1) == labels[chosen]).float().mean())
            values = {"loss": loss.item(), "accuracy": accuracy, "grad_norm": norm, "lr": rate}
            if step % 20 == 0:
                with torch.no_grad():
                    values["val_loss"] = float(compare(model(held_out), held_out_labels))
            log(step, values)

    return Loop(run)


def _unscale(parameter: Tensor, scale: float, *, is_half: bool) -> None:
    if parameter.grad is not None and is_half:
        parameter.grad = parameter.grad.half().float() / scale


def ppo(
    rate: float = 1e-3, epochs: int = 4, count: int = 200, *, reward_ends_at: int = 10**9
) -> Loop:
    """An agent on a line of nine places, paid at the end that it is shown; logged as in CleanRL."""

    def run(log: Log) -> None:
        actor, critic = _mlp(11, 2), _mlp(11, 1)
        optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=rate)
        for step in range(1, count + 1):
            batch = _play(actor, critic, pays=step < reward_ends_at)
            logged = _update(actor, critic, optimizer, batch, epochs)
            logged |= {"charts/episodic_return": batch["return"], "charts/learning_rate": rate}
            log(step, {name: torch.as_tensor(value).item() for name, value in logged.items()})

    return Loop(run)


def _play(actor: nn.Module, critic: nn.Module, *, pays: bool, length: int = 24) -> dict[str, Any]:
    """Play 16 agents from the middle; advantages from discounted returns."""
    places, eye = torch.full((16,), 4), torch.eye(9)
    goals = torch.randint(2, (16,))
    shown = torch.eye(2)[goals]
    states, actions, rewards = [], [], []
    with torch.no_grad():
        for _ in range(length):
            state = torch.cat([eye[places], shown], 1)
            action = torch.distributions.Categorical(logits=actor(state)).sample()
            slip = torch.rand(16) < 0.1
            moved = torch.where(slip, 1 - action, action) * 2 - 1
            places = (places + moved).clamp(0, 8)
            states.append(state)
            actions.append(action)
            rewards.append((places == 8 * goals).float() * float(pays))
        total, returns = torch.zeros(16), []
        for reward in reversed(rewards):
            total = reward + 0.95 * total
            returns.insert(0, total)
        state, action, goal = torch.cat(states), torch.cat(actions), torch.cat(returns)
        value = critic(state).squeeze(1)
        logp = torch.distributions.Categorical(logits=actor(state)).log_prob(action)
    return {
        "state": state, "action": action, "goal": goal, "logp": logp, "value": value,
        "return": torch.stack(rewards).sum(0).mean(),
    }  # fmt: skip


def _update(
    actor: nn.Module,
    critic: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Any],
    epochs: int,
) -> dict[str, Any]:
    parameters = [*actor.parameters(), *critic.parameters()]
    advantage = batch["goal"] - batch["value"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(epochs):
        policy = torch.distributions.Categorical(logits=actor(batch["state"]))
        change = policy.log_prob(batch["action"]) - batch["logp"]
        ratio = change.exp()
        clipped = ratio.clamp(0.8, 1.2)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = (critic(batch["state"]).squeeze(1) - batch["goal"]).pow(2).mean()
        entropy = policy.entropy().mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
    explained = 1 - (batch["goal"] - batch["value"]).var() / (batch["goal"].var() + 1e-8)
    return {
        "losses/policy_loss": policy_loss, "losses/value_loss": value_loss,
        "losses/entropy": entropy, "losses/approx_kl": ((ratio - 1) - change).mean(),
        "losses/clipfrac": ((ratio - 1).abs() > 0.2).float().mean(),
        "losses/explained_variance": explained,
    }  # fmt: skip
