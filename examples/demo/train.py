"""Train a small language model on stories with four processes, then reward good stories.

An ordinary training script; only the decorator on `train`, `sentinel.log` and `sentinel.mark` are
added for monitoring. The model first imitates stories, then samples its own and moves towards those
above the average reward (REINFORCE with a batch baseline), kept near the imitator by a KL penalty.

    torchrun --nproc-per-node 4 examples/demo/train.py --folder /tmp/stories

`--reload-at` and `--count-twice-from` inject two common mistakes for `sentinel demo`; without them
the run is healthy.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
from dataclasses import dataclass
from pathlib import Path

import stories
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sentinel

MAX_STEPS = 600
SAVE_STEPS = 60
IMITATION_STEPS = 200
BATCH = 24


@dataclass(frozen=True)
class Settings:
    """The settings file of the reinforcement phase."""

    learning_rate: float = 1e-3
    kl_coef: float = 0.2


RELOADED = Settings(learning_rate=0.3, kl_coef=2e-4)
"""The same file after a wrong edit: too few zeros in one number, too many in the other."""

WARMUP_STEPS = 40
"""Steps over which the learning rate changes to its new value after settings are read."""


class Writer(nn.Module):
    """A recurrent language model over the words of the stories."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(stories.WORDS), width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.choose = nn.Linear(width, len(stories.WORDS))

    def forward(self, words: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probabilities of each next word, and the state after the last word."""
        seen, state = self.memory(self.embed(words), state)
        return self.choose(seen).log_softmax(-1), state

    @torch.no_grad()
    def write(self, prompts: Tensor) -> Tensor:
        """Prompts followed by sampled completions."""
        words, state, text = prompts, None, [prompts]
        for _ in range(stories.COMPLETION):
            scores, state = self(words, state)
            words = torch.multinomial(scores[:, -1].exp(), 1)
            text.append(words)
        return torch.cat(text, 1)


@dataclass
class Checkpoints:
    """Counts steps and saves checkpoints as the trainer of `transformers` does."""

    folder: Path
    save_steps: int
    max_steps: int
    global_step: int = 0

    @property
    def is_due(self) -> bool:
        """Whether this step ends with a checkpoint: every `save_steps`, and at the end."""
        return self.global_step % self.save_steps == 0 or self.global_step >= self.max_steps

    def save(self, model: nn.Module) -> None:
        """Save a checkpoint on rank 0, and mark it."""
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), self.folder / f"checkpoint-{self.global_step}.pt")
            sentinel.mark("save", step=self.global_step)


def imitate(model: nn.Module, rng: random.Random) -> tuple[Tensor, dict[str, float]]:
    """Loss of predicting each next word of real stories."""
    text = torch.tensor([stories.story(rng) for _ in range(BATCH)])
    scores, _ = model(text[:, :-1])
    loss = nn.functional.nll_loss(scores.flatten(0, 1), text[:, 1:].flatten())
    return loss, {"perplexity": loss.exp().item()}


def reinforce(
    model: DistributedDataParallel, reference: Writer, kl_coef: float, rng: random.Random
) -> tuple[Tensor, dict[str, float]]:
    """Loss that moves the model towards its better completions, and the logged values."""
    text = model.module.write(torch.tensor([stories.prompt(rng) for _ in range(BATCH)]))
    rewards = torch.tensor([stories.reward(words) for words in text.tolist()])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-3)
    completion = slice(stories.PROMPT - 1, None)
    with torch.no_grad():
        before = reference(text[:, :-1])[0][:, completion]
    now = model(text[:, :-1])[0][:, completion]
    taken = now.gather(-1, text[:, stories.PROMPT :, None])[..., 0]
    # The vocabulary is small enough to sum over, so this is the KL itself and not an estimate.
    kl = (now.exp() * (now - before)).sum(-1).mean()
    loss = kl_coef * kl - (advantages[:, None] * taken).mean()
    entropy = -(now.exp() * now).sum(-1).mean()
    figures = {
        "kl": kl.item(),
        "reward": rewards.mean().item(),
        "reward_std": rewards.std().item(),
        "entropy": entropy.item(),
        "completion_length": float(taken.shape[1]),
    }
    return loss, figures


@dataclass
class Rate:
    """A learning rate that changes linearly from `start` to `goal`."""

    start: float
    goal: float
    age: int = 0

    def step(self, optimizer: torch.optim.Optimizer) -> float:
        """Set the next value, and return it."""
        self.age += 1
        value = self.start + (self.goal - self.start) * min(1.0, self.age / WARMUP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = value
        return value


@sentinel.monitor(run="demo", save_steps=SAVE_STEPS, max_steps=MAX_STEPS)
def train(options: argparse.Namespace) -> None:
    """Imitate, then reinforce, and save checkpoints."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(Writer())
    rank = dist.get_rank()
    torch.manual_seed(options.seed * 1000 + rank)
    rng = random.Random(options.seed * 1000 + rank)
    checkpoints = Checkpoints(options.folder, SAVE_STEPS, MAX_STEPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    settings, rate, reference = Settings(), Rate(1e-2, 1e-2), model.module

    for update in range(1, MAX_STEPS + 1):
        if update == IMITATION_STEPS + 1:
            reference = copy.deepcopy(model.module)
            optimizer = torch.optim.Adam(model.parameters())
            rate = Rate(0.0, settings.learning_rate)
        if update == options.reload_at:
            settings, rate = RELOADED, Rate(settings.learning_rate, RELOADED.learning_rate)
        rate.step(optimizer)
        if update <= IMITATION_STEPS:
            loss, figures = imitate(model, rng)
        else:
            loss, figures = reinforce(model, reference, settings.kl_coef, rng)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        checkpoints.global_step += 1
        if 0 < options.count_twice_from <= update:
            # As in huggingface/trl#2124: one count for the mini-batch, one more for the update.
            checkpoints.global_step += 1
        sentinel.log(figures, step=checkpoints.global_step)
        if rank == 0 and update % options.print_every == 0:
            printed = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
            print(f"step {checkpoints.global_step}  loss {loss.item():.4f}  {printed}", flush=True)
        if checkpoints.is_due:
            checkpoints.save(model.module)


def main() -> None:
    """Parse the options, join the process group, train, and leave the group."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--folder", type=Path, required=True, help="where checkpoints go")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--reload-at", type=int, default=0, help="update that reads bad settings")
    options.add_argument("--count-twice-from", type=int, default=0, help="update that counts twice")
    options.add_argument("--print-every", type=int, default=10)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options.parse_args())
    dist.barrier()
    # Objects that refer to the process group keep its threads alive until the interpreter exits,
    # and these may abort the process (pytorch/pytorch#179291).
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
