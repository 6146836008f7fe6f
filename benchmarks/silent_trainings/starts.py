"""Trainings that do not start from what they should: weights, reference and probabilities."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

import sentinel
from silent_trainings.case import case
from silent_trainings.loops import STEPS, checkpoint, examples, loss_of, network, train, update

GITHUB = "https://github.com/"


@case(GITHUB + "torchgeo/torchgeo/issues/4036", "weights_not_loaded")
def checkpoint_keys_with_a_prefix(*, sick: bool) -> None:
    """No key of the checkpoint is one of the model, and `strict=False` ignores all of them."""
    model = network()
    prefix = "encoder." if sick else ""
    weights = {f"{prefix}{name}": each for name, each in checkpoint().items()}
    model.load_state_dict(weights, strict=False)
    train(model, AdamW(model.parameters(), 1e-4))


@case(GITHUB + "zshn25/DINOv2_mmseg/pull/1", "weights_not_loaded/set_anew")
def loaded_and_initialised_again(*, sick: bool) -> None:
    """The runner initialises the weights after they were loaded."""
    model = network()
    model.load_state_dict(checkpoint())
    if sick:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
    train(model, AdamW(model.parameters(), 1e-4))


class Adapted(nn.Module):
    """A frozen network with an adapter behind its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = network().requires_grad_(False), nn.Linear(64, 64, bias=False)
        self.base.load_state_dict(checkpoint())
        nn.init.zeros_(self.adapter.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base[:4](inputs)
        return self.base[4:](hidden + self.adapter(hidden))


@case(GITHUB + "huggingface/lerobot/issues/3459", "weights_not_loaded/replaced")
def adapter_wrapped_twice(*, sick: bool) -> None:
    """On a resume the loaded adapter is replaced by a new one."""
    model = Adapted()
    trained = nn.Linear(64, 64, bias=False)
    nn.init.eye_(trained.weight)
    model.load_state_dict({"adapter.weight": trained.weight}, strict=False)
    if sick:
        model.adapter = nn.Linear(64, 64, bias=False)
    train(model, AdamW(model.adapter.parameters(), 1e-4))


@case(GITHUB + "NVIDIA/NeMo-Aligner/issues/227", "unequal_start/policy_differs")
def policy_differs_from_reference(*, sick: bool) -> None:
    """At the first step of DPO the policy and its reference give different probabilities."""
    policy = network().eval()
    policy.load_state_dict(checkpoint())
    reference = copy.deepcopy(policy).requires_grad_(False)
    if sick:
        with torch.no_grad():
            reference[-1].weight.mul_(0.5)
    optimizer = AdamW(policy[4:].parameters(), 1e-4)
    policy[:4].requires_grad_(False)
    policy.train()
    policy[:4].eval()
    for _ in range(STEPS):
        inputs, chosen = examples()
        rejected = (chosen + 1) % 5
        margins = [
            model(inputs).log_softmax(1).gather(1, chosen[:, None])
            - model(inputs).log_softmax(1).gather(1, rejected[:, None])
            for model in (policy, reference)
        ]
        loss = -functional.logsigmoid(0.1 * (margins[0] - margins[1])).mean()
        update(optimizer, loss)


@case(GITHUB + "huggingface/trl/issues/454", "unequal_start")
def ratio_is_not_one(*, sick: bool) -> None:
    """Dropout makes the probability ratio of PPO another one than 1 before the first update."""
    policy = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))
    if not sick:
        policy[2].p = 0.0
    optimizer = AdamW(policy.parameters(), 1e-4)
    for step in range(STEPS):
        inputs, labels = examples(64)
        with torch.no_grad():
            old = policy(inputs).log_softmax(1)
        actions = torch.distributions.Categorical(logits=old).sample()
        reward = (actions == labels).float()
        new = policy(inputs).log_softmax(1)
        ratio = (new - old).gather(1, actions[:, None]).squeeze(1).exp()
        loss = -(ratio * (reward - reward.mean())).mean()
        update(optimizer, loss)
        sentinel.log({"ratio": ratio.mean().item(), "reward": reward.mean().item()}, step=step + 1)


@case(GITHUB + "huggingface/trl/issues/744", "unequal_start")
def dropout_in_the_policy(*, sick: bool) -> None:
    """Dropout of the policy makes its divergence from an equal reference another than 0."""
    policy = network()
    policy.load_state_dict(checkpoint())
    if not sick:
        policy[3].p = 0.0
    policy[1].eval()
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    optimizer = AdamW(policy.parameters(), 1e-4)
    for step in range(STEPS):
        batch = examples()
        outputs, expected = policy(batch[0]), reference(batch[0])
        divergence = functional.kl_div(
            outputs.log_softmax(1), expected.log_softmax(1), log_target=True, reduction="batchmean"
        )
        update(optimizer, loss_of(policy, batch) + 0.1 * divergence)
        reward = (outputs.argmax(1) == batch[1]).float().mean()
        values = {"objective/kl": divergence.item(), "reward": reward.item()}
        sentinel.log(values, step=step + 1)
