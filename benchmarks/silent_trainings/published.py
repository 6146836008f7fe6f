"""The set of errors that TrainCheck (Jiang et al. 2025, OSDI) reproduced, and one more of its kind.

Errors of old versions of libraries, or of GPUs, are simulated by what they did to the training.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.checked_trainings import written_back
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, Dataset

from silent_trainings.case import NotReproduced, case
from silent_trainings.loops import (
    RANK_STEPS,
    STEPS,
    checkpoint,
    endless,
    evaluate,
    examples,
    loader,
    loss_of,
    network,
    replicated,
    sequences,
    train,
    update,
)

GITHUB = "https://github.com/"

NOT_REPRODUCED = {
    "deepspeed-5794": NotReproduced(
        "Workers of a mixture of experts exchange tensors of different shapes, and wait for ever.",
        GITHUB + "deepspeedai/DeepSpeed/issues/5794",
        "a hang, found by time and not at a step: `run_stalled` names it with the rank that is "
        "behind, as `tests/chaos/test_rank_hangs.py` measures",
    ),
    "transformers-23723": NotReproduced(
        "A long prompt makes a generation longer than `max_new_tokens`.",
        GITHUB + "huggingface/transformers/issues/23723",
        "an error of a generation without a training",
    ),
    "pytorch-51800": NotReproduced(
        "Spectral normalization is not initialised before an evaluation.",
        GITHUB + "pytorch/pytorch/issues/51800",
        "an error of an evaluation without a training",
    ),
}


class _SumOverRanks(torch.autograd.Function):
    """The sum of the results of all ranks, between which a layer is divided."""

    @staticmethod
    def forward(_: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class TensorParallel(nn.Module):
    """A layer whose columns are divided between the ranks, behind a norm that each rank holds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(20)
        self.columns = nn.Linear(20, 32 // dist.get_world_size())
        self.rows = nn.Linear(32 // dist.get_world_size(), 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return _SumOverRanks.apply(self.rows(self.columns(self.norm(inputs)).tanh()))


@case(
    GITHUB + "deepspeedai/DeepSpeed/issues/1801",
    "replicas_differ",
    published="deepspeed-1801",
    ranks=2,
)
def clipped_on_one_rank(*, sick: bool) -> None:
    """The gradient of a norm is clipped on one tensor-parallel rank only (BLOOM-176B)."""
    model = TensorParallel()
    optimizer = AdamW(model.parameters())
    for step in range(RANK_STEPS):
        torch.manual_seed(step)
        inputs, labels = examples()
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        for parameter in model.norm.parameters():
            dist.all_reduce(parameter.grad)
            if not sick or dist.get_rank() == 0:
                nn.utils.clip_grad_norm_(parameter, 0.01)
        optimizer.step()


@case(
    GITHUB + "pytorch/pytorch/issues/104336",
    "replicas_differ",
    published="pytorch-104336",
    ranks=2,
)
def converted_after_wrapping(*, sick: bool) -> None:
    """The parameters are converted and back after DDP wrapped them: its hooks are lost."""
    model = replicated(network())
    if sick:
        model.module.double().float()
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@case(
    "https://github.com/OrderLab/TrainCheck",
    "replicas_differ",
    published="x-jxmnop-ddp-out-of-sync",
    ranks=2,
)
def wrapped_sometimes(*, sick: bool) -> None:
    """The model is called without its DDP wrapper at every other step."""
    net = network()
    model = replicated(net)
    optimizer = AdamW(model.parameters())
    for step in range(RANK_STEPS):
        update(optimizer, loss_of(net if sick and step % 2 else model, examples()))


@case(
    GITHUB + "pytorch/pytorch/issues/84803",
    "replicas_differ",
    published="pytorch-84803, pytorch-96600, baichuan2-86",
    ranks=2,
)
def messages_lost(*, sick: bool) -> None:
    """One of a hundred messages between the ranks arrives as zeros."""
    layers = [each for _ in range(20) for each in (nn.Linear(20, 20), nn.Tanh())]
    # A message for each weight.
    model = replicated(nn.Sequential(*layers, nn.Linear(20, 5)), bucket_cap_mb=1e-4)
    lost = torch.Generator().manual_seed(dist.get_rank())

    # PyTorch refuses annotations that are text.
    def exchange(state, bucket):
        is_lost = sick and float(torch.rand(1, generator=lost)) < 0.01
        future = allreduce_hook(state, bucket)
        return future.then(lambda sums: torch.zeros_like(sums.value())) if is_lost else future

    model.register_comm_hook(None, exchange)
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@case(
    "https://discuss.pytorch.org/t/84911",
    "weights_not_updated/only_norms",
    published="pytorch-forum-84911",
)
def all_but_norms_frozen(*, sick: bool) -> None:
    """All layers but the normalisation are frozen by mistake."""
    model = network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not sick or name.startswith("1.")
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]))


@case(
    "https://stackoverflow.com/questions/60335387",
    "gradients_not_cleared/not_cleared",
    published="stackoverflow-60335387",
)
def zero_grad_missing(*, sick: bool) -> None:
    """`zero_grad` is missing."""
    model = network()
    optimizer = SGD(model.parameters(), 1e-3)
    train(model, optimizer, clear=(lambda: None) if sick else optimizer.zero_grad)


@case(
    GITHUB + "huggingface/accelerate/issues/2665",
    "weights_not_updated/other_tensors",
    "weights_not_updated/no_gradient",
    published="accelerate-2665",
    ranks=2,
)
def sharded_after_the_optimizer(*, sick: bool) -> None:
    """The model is sharded by FSDP2 after its optimizer was made, which holds other tensors."""
    from torch.distributed.fsdp import fully_shard

    model = network()[4:]
    optimizer = AdamW(model.parameters())
    fully_shard(model)
    if not sick:
        optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        loss = functional.cross_entropy(model(torch.randn(16, 64)), torch.randint(5, (16,)))
        update(optimizer, loss)
        model.zero_grad()


@case(
    GITHUB + "pytorch/pytorch/issues/115607",
    "weights_not_updated/unchanged",
    published="pytorch-115607",
    begins=3,
)
def compiled_step_that_stops(*, sick: bool) -> None:
    """A compiled optimizer updates nothing more after the gradients were None once."""
    model = network()

    class Compiled(AdamW):
        steps = 0

        def step(self, closure: Any = None) -> None:
            self.steps += 1
            if not sick or self.steps <= 3:
                super().step(closure)

    train(model, Compiled(model.parameters()))


@case(
    GITHUB + "open-mmlab/mmpretrain/issues/702",
    "unexpected_weight_changes/frozen",
    published="mmpretrain-702",
    begins=3,
)
def frozen_too_late(*, sick: bool) -> None:
    """A stage is frozen after the first steps, and momentum and weight decay still move it."""
    model = network()
    if not sick:
        model[:2].requires_grad_(False)
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-2)
    clear = partial(optimizer.zero_grad, set_to_none=False)
    train(model, optimizer, clear=clear, steps=3)
    model[:2].requires_grad_(False)
    train(model, optimizer, clear=clear)


@case(
    "https://elanapearl.github.io/blog/2025/the-bug-that-taught-me-pytorch/",
    "weights_not_updated/part_unchanged",
    published="the MPS kernel (not of TrainCheck)",
)
def in_place_update_lost(*, sick: bool) -> None:
    """The in-place update of a tensor that is not contiguous is lost: one layer never moves."""
    model = network()
    optimizer = AdamW(model.parameters())
    written_back(model, optimizer, *(["4.weight"] if sick else []))
    train(model, optimizer)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """A data set whose noise is of a generator that each worker copies, or of the worker's own."""

    def __init__(self, *, is_copied: bool) -> None:
        self.inputs, self.labels = examples(320)
        self.generator = np.random.default_rng(0) if is_copied else None

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        own = torch.randn(20)
        noise = own if self.generator is None else torch.from_numpy(self.generator.normal(size=20))
        return self.inputs[index] + 0.1 * noise.float(), self.labels[index]


@case(
    "https://stackoverflow.com/questions/67180955",
    "repeated_batches/same_random_numbers",
    published="stackoverflow-67180955",
)
def workers_with_the_same_noise(*, sick: bool) -> None:
    """The workers of a data loader repeat the same random augmentation."""
    model = network()
    data = DataLoader(Augmented(is_copied=sick), 16, shuffle=True, num_workers=2)
    train(model, AdamW(model.parameters()), batches=[*endless(data)])


class Attention(nn.Module):
    """Attention with dropout, which is asked for in each mode if `is_always_active`."""

    def __init__(self, *, is_always_active: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.qkv, self.head = nn.Linear(32, 96), nn.Linear(32, 20)
        self.is_always_active = is_always_active

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys, values = self.qkv(self.embedding(tokens)).chunk(3, -1)
        share = 0.1 if self.training or self.is_always_active else 0.0
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=share, is_causal=True
        )
        return self.head(mixed)


@case(
    GITHUB + "huggingface/transformers/issues/33844",
    "evaluation_in_training_mode",
    published="transformers-33844",
    begins=9,
)
def dropout_in_evaluation(*, sick: bool) -> None:
    """Attention keeps its dropout in evaluation mode."""
    model = Attention(is_always_active=sick)
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        tokens = sequences()
        update(optimizer, functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]))
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(tokens)
            model.train()


class Images(nn.Module):
    """A classifier of images with text, which takes what one row of images is for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(16, 32), nn.Embedding(20, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return self.head(self.text(input_ids).mean(1) + self.image(pixel_values).mean(1))


@case(
    GITHUB + "huggingface/transformers/issues/34204",
    "inputs_mismatched/images_in_one_row",
    published="transformers-34204",
)
def images_in_one_row(*, sick: bool) -> None:
    """A processor puts the images of a batch into one row."""
    model = Images()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        tokens, pixels = torch.randint(20, (8, 6)), torch.randn(8, 1, 16)
        batch = {
            "input_ids": tokens,
            "pixel_values": pixels.reshape(1, 8, 16) if sick else pixels,
        }
        update(optimizer, functional.cross_entropy(model(**batch), tokens[:, 0] % 5))


@case(
    GITHUB + "huggingface/transformers/issues/17877",
    "unexpected_weight_changes/set_anew",
    published="transformers-17877",
    begins=5,
)
def initialised_again(*, sick: bool) -> None:
    """The initialisation runs again over weights that are loaded and trained."""
    model = network()
    model.load_state_dict(checkpoint())
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=5)
    if sick:
        for layer in model[4:]:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
    train(model, optimizer)


@case(
    GITHUB + "Lightning-AI/lightning-thunder/issues/725",
    "autocast_not_in_force",
    published="lightning-thunder-725",
)
def function_without_autocast(*, sick: bool) -> None:
    """A function inside autocast computes in float32."""
    model, data = network(), loader(shuffle=True)
    optimizer = AdamW(model.parameters())
    for inputs, labels in endless(data):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model[:4](inputs)
            with torch.autocast("cpu", torch.bfloat16, enabled=not sick):
                outputs = model[4:](hidden.float())
            loss = functional.cross_entropy(outputs.float(), labels)
        update(optimizer, loss)
    model.eval()
    evaluate(model, data)
