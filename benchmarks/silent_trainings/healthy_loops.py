"""Healthy trainings with plain PyTorch, of as many kinds as people write."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrizations
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as schedules
from torch.utils.checkpoint import checkpoint as recompute
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from silent_trainings.case import healthy
from silent_trainings.loops import (
    checkpoint,
    endless,
    evaluate,
    examples,
    loader,
    loss_of,
    network,
    sequences,
    train,
    update,
)

STEPS = 60


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for size, following in pairwise(widths):
        layers += [nn.Linear(size, following), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
) -> None:
    """Train on this loss."""
    optimizer = AdamW(model.parameters(), 2e-3) if optimizer is None else optimizer
    for _ in range(steps):
        update(optimizer, loss())


# Optimizers.


def trained_with(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = network()
    train(model, make(model.parameters()), steps=STEPS, batches=loader(shuffle=True))


KINDS = (
    "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor",
    "SGD",
)  # fmt: skip
for name in KINDS:
    healthy(
        lambda kind=name: trained_with(lambda own: getattr(torch.optim, kind)(own, lr=1e-3)),
        name=f"optimizer_{name.lower()}",
    )


@healthy
def sgd_with_nesterov_and_decay() -> None:
    trained_with(lambda own: SGD(own, 1e-2, momentum=0.9, nesterov=True, weight_decay=5e-4))


@healthy
def fused_adam() -> None:
    trained_with(lambda own: AdamW(own, fused=True))


@healthy
def differentiable_sizes() -> None:
    """AMSGrad, maximize on the negated loss, and single-tensor steps."""
    model = network()
    optimizer = Adam(model.parameters(), amsgrad=True, maximize=True, foreach=False)
    fit(model, lambda: -loss_of(model, examples()), optimizer)


@healthy
def muon_for_matrices() -> None:
    model = network()
    hidden = [each for each in model.parameters() if each.dim() == 2]
    rest = [each for each in model.parameters() if each.dim() != 2]
    optimizers = [torch.optim.Muon(hidden, 1e-3), AdamW(rest)]
    for _ in range(STEPS):
        loss_of(model, examples()).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()


@healthy
def lookahead() -> None:
    """Every five steps the weights go half of the way back to slow ones."""
    model = network()
    optimizer = AdamW(model.parameters())
    slow = [each.detach().clone() for each in model.parameters()]
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        if step % 5 == 4:
            with torch.no_grad():
                for each, old in zip(model.parameters(), slow, strict=True):
                    old.lerp_(each, 0.5)
                    each.copy_(old)


@healthy
def adam_then_lbfgs() -> None:
    """A network that solves a differential equation, with second derivatives."""
    model = perceptron(1, 24, 24, 1)

    def residual() -> Tensor:
        at = torch.linspace(0, 1, 24)[:, None].requires_grad_()
        value = model(at)
        (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        return (slope + value).square().mean() + (value[0] - 1).square().sum()

    fit(model, residual, Adam(model.parameters(), 1e-3))
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = residual()
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)


@healthy
def sparse_embeddings() -> None:
    table, head = nn.EmbeddingBag(200, 16, sparse=True), nn.Linear(16, 5)
    optimizers = [torch.optim.SparseAdam([*table.parameters()]), AdamW(head.parameters())]
    for _ in range(STEPS):
        tokens = torch.randint(200, (16, 4))
        loss = functional.cross_entropy(head(table(tokens)), tokens[:, 0] % 5)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()


@healthy
def step_in_the_backward_pass() -> None:
    """Each weight has an optimizer of its own, which steps when its gradient is complete."""
    model = network()
    optimizers = {each: AdamW([each]) for each in model.parameters()}

    def step(weight: Tensor) -> None:
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss_of(model, examples()).backward()


@healthy
def low_precision_with_master_weights() -> None:
    """The model is in bfloat16, and the optimizer has copies in float32."""
    model = network().bfloat16()
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    optimizer = AdamW(masters, 1e-5)
    for _ in range(STEPS):
        loss_of(model, examples()).backward()
        for master, each in zip(masters, model.parameters(), strict=True):
            master.grad, each.grad = each.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, each in zip(masters, model.parameters(), strict=True):
                each.copy_(master)


@healthy
def gradients_with_noise() -> None:
    """Each gradient of an example is clipped, and noise is added, for privacy."""
    model = perceptron(20, 32, 5)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        sums = [torch.zeros_like(each) for each in model.parameters()]
        for row, label in zip(*examples(8), strict=True):
            loss = functional.cross_entropy(model(row[None]), label[None])
            gradients = torch.autograd.grad(loss, [*model.parameters()])
            norm = torch.stack([each.norm() for each in gradients]).norm()
            for total, each in zip(sums, gradients, strict=True):
                total.add_(each / norm.clamp_min(1.0))
        for each, total in zip(model.parameters(), sums, strict=True):
            each.grad = (total + 0.1 * torch.randn_like(total)) / 8
        optimizer.step()


@healthy
def evolution_of_weights() -> None:
    """Gradients are estimated by differences of losses at random directions."""
    model = perceptron(20, 5)
    optimizer = SGD(model.parameters(), 0.05)
    weights = [*model.parameters()]
    for _ in range(STEPS):
        batch = examples(32)
        with torch.no_grad():
            noise = [torch.randn_like(each) for each in weights]
            losses = []
            for sign in (1.0, -1.0):
                for each, one in zip(weights, noise, strict=True):
                    each.add_(one, alpha=sign * 0.01)
                losses.append(loss_of(model, batch))
                for each, one in zip(weights, noise, strict=True):
                    each.sub_(one, alpha=sign * 0.01)
            for each, one in zip(weights, noise, strict=True):
                each.grad = (losses[0] - losses[1]) / 0.02 * one
        optimizer.step()


# Schedules.


def scheduled(make: Callable[[torch.optim.Optimizer], Any], every: int = 1) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = make(optimizer)
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples(32)))
        if step % every == every - 1:
            schedule.step()


@healthy
def one_cycle() -> None:
    scheduled(lambda own: schedules.OneCycleLR(own, 0.1, total_steps=STEPS + 1))


@healthy
def cosine_with_restarts() -> None:
    scheduled(lambda own: schedules.CosineAnnealingWarmRestarts(own, 10))


@healthy
def cyclic_rate() -> None:
    scheduled(lambda own: schedules.CyclicLR(own, 1e-4, 0.1, step_size_up=8))


@healthy
def warm_up_then_cosine() -> None:
    scheduled(
        lambda own: schedules.SequentialLR(
            own,
            [schedules.LinearLR(own, 0.01, total_iters=6), schedules.CosineAnnealingLR(own, 54)],
            [6],
        )
    )


@healthy
def step_rate_by_epoch() -> None:
    scheduled(lambda own: schedules.StepLR(own, 2, 0.5), every=10)


@healthy
def chained_schedules() -> None:
    scheduled(
        lambda own: schedules.ChainedScheduler(
            [schedules.ConstantLR(own, 0.5, 8), schedules.ExponentialLR(own, 0.98)]
        )
    )


@healthy
def rate_reduced_on_a_plateau() -> None:
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    schedule = schedules.ReduceLROnPlateau(optimizer, patience=1)
    for _ in range(6):
        model.train()
        train(model, optimizer, steps=10, batches=loader(shuffle=True))
        model.eval()
        schedule.step(evaluate(model, held_out))


def search_of_rates(first: float, last: float) -> None:
    """A search for the rate, after which the weights are loaded again and trained."""
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = AdamW(model.parameters(), first)
    factor = (last / first) ** (1 / STEPS)
    schedule = schedules.LambdaLR(optimizer, lambda step: factor**step)
    train(model, optimizer, schedule=schedule, steps=STEPS)
    model.load_state_dict(before)
    train(model, AdamW(model.parameters()), steps=STEPS)


@healthy
def search_of_rates_upwards() -> None:
    search_of_rates(1e-6, 1e-1)


@healthy
def search_of_rates_downwards() -> None:
    search_of_rates(1e-1, 1e-7)


@healthy
def search_of_rates_downwards_fast() -> None:
    model = network()
    optimizer = AdamW(model.parameters(), 0.1)
    schedule = schedules.ExponentialLR(optimizer, 0.3)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, schedule=schedule, steps=24)
    model.load_state_dict(before)
    train(model, AdamW(model.parameters()), steps=STEPS)


@healthy
def rate_set_by_hand() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 10)
        update(optimizer, loss_of(model, examples()))


# Parts that are trained.


@healthy
def unfrozen_step_by_step() -> None:
    """The head first; each later group is added to the optimizer."""
    model = network()
    model.requires_grad_(False)
    model[6].requires_grad_(True)
    optimizer = AdamW(model[6].parameters())
    for at in (4, 1, 0):
        train(model, optimizer, steps=15)
        model[at].requires_grad_(True)
        optimizer.add_param_group({"params": [*model[at].parameters()], "lr": 1e-4})
    train(model, optimizer, steps=15)


@healthy
def head_then_everything() -> None:
    """Linear probing, then fine-tuning with another optimizer."""
    model = network()
    model.load_state_dict(checkpoint())
    model[:6].requires_grad_(False)
    train(model, AdamW(model[6].parameters()), steps=STEPS)
    model.requires_grad_(True)
    train(model, AdamW(model.parameters(), 1e-4), steps=STEPS)


@healthy
def rates_by_layer() -> None:
    model = network()
    groups = [
        {"params": [*layer.parameters()], "lr": 1e-3 * 0.7**at}
        for at, layer in enumerate(reversed(model))
        if [*layer.parameters()]
    ]
    train(model, AdamW(groups), steps=STEPS)


@healthy
def biases_alone() -> None:
    """BitFit: the biases of a loaded model."""
    model = network()
    model.load_state_dict(checkpoint())
    for name, each in model.named_parameters():
        each.requires_grad = name.endswith("bias")
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]), steps=STEPS)


@healthy
def norms_alone_after_copies() -> None:
    """The weights are copied by hand, and the norms trained alone."""
    model, source = network(), checkpoint()
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(source[name])
    for name, each in model.named_parameters():
        each.requires_grad = name.startswith("1.")
    train(model, AdamW(model[1].parameters()), steps=STEPS)


@healthy
def norms_alone_after_data_was_set() -> None:
    model, source = network(), checkpoint()
    for name, each in model.named_parameters():
        each.data = source[name].clone()
        each.requires_grad = name.startswith("1.")
    train(model, AdamW(model[1].parameters()), steps=STEPS)


class LowRank(nn.Module):
    """A frozen layer with an adapter."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_a = nn.Linear(layer.in_features, 4, bias=False)
        self.lora_b = nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.lora_b(self.lora_a(inputs))


def with_adapters(model: nn.Sequential) -> nn.Sequential:
    for at in (0, 4, 6):
        model[at] = LowRank(model[at])
    return model


@healthy
def adapters_by_hand() -> None:
    model = network()
    model.load_state_dict(checkpoint())
    with_adapters(model)
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]), steps=STEPS)


@healthy
def old_adapter_dropped_unused() -> None:
    """A loaded adapter is not used, and a new one of its shape is trained."""
    old = nn.Linear(20, 20)
    old.load_state_dict(nn.Linear(20, 20).state_dict())
    model = nn.Sequential(old, network())
    model[1].load_state_dict(checkpoint())
    model[1].requires_grad_(False)
    model[0] = nn.Linear(20, 20)
    del old
    train(model, AdamW(model[0].parameters()), steps=STEPS)


@healthy
def old_adapter_evaluated_without_a_loader() -> None:
    model = nn.Sequential(nn.Linear(20, 20), network())
    model[0].load_state_dict(nn.Linear(20, 20).state_dict())
    model[1].load_state_dict(checkpoint())
    model[1].requires_grad_(False)
    model.eval()
    evaluate(model, [examples() for _ in range(8)])
    model.train()
    model[0] = nn.Linear(20, 20)
    train(model, AdamW(model[0].parameters()), steps=STEPS)


@healthy
def prompt_before_a_frozen_model() -> None:
    model = perceptron(20, 64, 5).requires_grad_(False)
    prompt = nn.Parameter(torch.zeros(20))
    optimizer = AdamW([prompt], 1e-2)
    for _ in range(STEPS):
        inputs, labels = examples()
        update(optimizer, functional.cross_entropy(model(inputs + prompt), labels))


@healthy
def quantized_base_with_adapters() -> None:
    """Weights as 8-bit integers in parameters without a gradient, and adapters beside them."""

    class Quantized(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.scale = float(layer.weight.abs().max()) / 127
            rounded = (layer.weight.detach() / self.scale).round().to(torch.int8)
            self.weight = nn.Parameter(rounded, requires_grad=False)
            self.adapter_a = nn.Linear(layer.in_features, 4, bias=False)
            self.adapter_b = nn.Linear(4, layer.out_features, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            base = functional.linear(inputs, self.weight.float() * self.scale)
            return base + self.adapter_b(self.adapter_a(inputs))

    model = network()
    for at in (0, 4, 6):
        model[at] = Quantized(model[at])
    optimizer = AdamW([each for each in model.parameters() if each.requires_grad])

    def loss() -> Tensor:
        inputs, labels = examples()
        return functional.cross_entropy(model(inputs), labels)

    fit(model, loss, optimizer)


@healthy
def detached_teacher_features() -> None:
    """A frozen encoder under `no_grad`, whose parameters still require gradients."""
    encoder, head = network()[:6], nn.Linear(64, 5)
    model = nn.Sequential(encoder, head)
    optimizer = AdamW(head.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        with torch.no_grad():
            hidden = encoder(inputs)
        update(optimizer, functional.cross_entropy(model[1](hidden), labels))


# Models.


class Experts(nn.Module):
    """Two of eight experts for each token, of which some get none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(20, 8)
        self.experts = nn.ModuleList(perceptron(20, 16, 20) for _ in range(8))
        self.head = nn.Linear(20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        weights, chosen = self.gate(inputs).softmax(-1).topk(2)
        output = inputs.clone()
        for at, expert in enumerate(self.experts[:7]):
            rows, places = (chosen == at).nonzero(as_tuple=True)
            if len(rows):
                output[rows] += weights[rows, places][:, None] * expert(inputs[rows])
        return self.head(output)


@healthy
def mixture_of_experts() -> None:
    model = Experts()
    train(model, AdamW(model.parameters()), steps=STEPS)


class Language(nn.Module):
    """A small language model with tied weights; each block is recomputed if so asked."""

    def __init__(self, recomputed: bool | None = None, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, 0.1, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(32, 20, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.recomputed = recomputed

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            if self.recomputed is None:
                hidden = block(hidden, mask, is_causal=True)
            else:
                hidden = recompute(block, hidden, mask, use_reentrant=self.recomputed)
        return self.head(hidden)

    def loss(self, tokens: Tensor) -> Tensor:
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])


@healthy
def tied_language_model() -> None:
    model = Language()
    fit(model, lambda: model.loss(sequences()))


@healthy
def recomputed_blocks() -> None:
    model = Language(recomputed=False)
    fit(model, lambda: model.loss(sequences()))


@healthy
def recomputed_blocks_reentrant() -> None:
    model = Language(recomputed=True)
    fit(model, lambda: model.loss(sequences()))


@healthy
def language_model_in_bfloat16() -> None:
    model = Language().bfloat16()
    fit(model, lambda: model.loss(sequences()), AdamW(model.parameters(), 1e-3))


@healthy
def language_model_with_generations() -> None:
    model = Language()
    optimizer = AdamW(model.parameters(), 2e-3)
    for step in range(STEPS):
        update(optimizer, model.loss(sequences()))
        if step % 20 == 19:
            model.eval()
            tokens = sequences(2)
            with torch.inference_mode():
                for _ in range(6):
                    tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            model.train()


@healthy
def language_model_under_autocast() -> None:
    model = Language()
    optimizer = AdamW(model.parameters(), 2e-3)
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(sequences())
        update(optimizer, loss)


@healthy
def compiled_with_eager_backend() -> None:
    model = network()
    train(torch.compile(model, backend="eager"), AdamW(model.parameters()), steps=STEPS)


@healthy
def compiled_with_evaluations() -> None:
    model, held_out = network(), loader()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = AdamW(model.parameters())
    for _ in range(4):
        compiled.train()
        train(compiled, optimizer, steps=10, batches=loader(shuffle=True))
        compiled.eval()
        evaluate(compiled, held_out)


@healthy
def convolutions_in_channels_last() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(16, 5),
    ).to(memory_format=torch.channels_last)  # fmt: skip

    def loss() -> Tensor:
        labels = torch.randint(5, (16,))
        images = torch.randn(16, 3, 10, 10) + labels[:, None, None, None]
        return functional.cross_entropy(model(images), labels)

    fit(model, loss)


@healthy
def recurrent_network() -> None:
    """Truncated backpropagation through time: the state is detached."""
    lstm, head = nn.LSTM(20, 32, 2, dropout=0.1, batch_first=True), nn.Linear(32, 20)
    model = nn.ModuleList([lstm, head])
    optimizer, state = AdamW(model.parameters(), 3e-3), None
    for _ in range(STEPS):
        tokens = sequences()
        output, state = lstm(functional.one_hot(tokens[:, :-1], 20).float(), state)
        state = tuple(each.detach() for each in state)
        loss = functional.cross_entropy(head(output).transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@healthy
def graph_network() -> None:
    """All nodes of one graph in each step, with a sparse matrix; a mask says which are trained."""
    labels = torch.arange(80) % 4
    features = functional.one_hot(labels, 4) + 0.8 * torch.randn(80, 4)
    edges = torch.randint(80, (2, 400))
    adjacency = torch.sparse_coo_tensor(edges, torch.full((400,), 0.2), (80, 80)).coalesce()
    model = nn.ModuleList([nn.Linear(4, 32), nn.Linear(32, 4)])
    is_trained = torch.rand(80) < 0.6
    optimizer = AdamW(model.parameters(), 1e-2)
    for step in range(STEPS):
        hidden = functional.dropout(
            (adjacency @ model[0](features) + model[0](features)).relu(), 0.3
        )
        output = model[1](hidden)
        update(optimizer, functional.cross_entropy(output[is_trained], labels[is_trained]))
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                model[1](model[0](features).relu()).argmax(1)
            model.train()


def variational(network_in: nn.Module, network_out: nn.Module) -> None:
    model = nn.ModuleList([network_in, network_out])

    def loss() -> Tensor:
        inputs = examples(32)[0]
        mean, log_variance = network_in(inputs).chunk(2, 1)
        hidden = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return ((network_out(hidden) - inputs).square().sum(1) + divergence).mean()

    fit(model, loss)


@healthy
def variational_autoencoder() -> None:
    variational(perceptron(20, 32, 8), perceptron(4, 32, 20))


@healthy
def autoencoder_with_a_codebook() -> None:
    """VQ-VAE: a straight-through estimator, and a codebook that is averaged, not trained."""
    encoder, decoder = perceptron(20, 32, 8), perceptron(8, 32, 20)
    codes = torch.randn(16, 8)
    model = nn.ModuleList([encoder, decoder])
    optimizer = AdamW(model.parameters(), 2e-3)
    for _ in range(STEPS):
        inputs = examples(32)[0]
        hidden = encoder(inputs)
        nearest = torch.cdist(hidden.detach(), codes).argmin(1)
        chosen = codes[nearest]
        for at in nearest.unique():
            codes[at].lerp_(hidden.detach()[nearest == at].mean(0), 0.1)
        output = decoder(hidden + (chosen - hidden).detach())
        loss = (output - inputs).square().mean() + 0.25 * (hidden - chosen).square().mean()
        update(optimizer, loss)


@healthy
def diffusion_with_an_average() -> None:
    model = perceptron(21, 64, 64, 20)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    optimizer = AdamW(model.parameters(), 2e-3)
    for _ in range(STEPS):
        inputs, noise, time = examples(32)[0], torch.randn(32, 20), torch.rand(32, 1)
        noised = (1 - time) * inputs + time * noise
        update(optimizer, (model(torch.cat([noised, time], 1)) - noise).square().mean())
        average.update_parameters(model)


@healthy
def weights_averaged_by_swa() -> None:
    model, data = network(), loader(shuffle=True)
    optimizer = SGD(model.parameters(), 0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, 0.01, 3)
    for epoch in range(6):
        train(model, optimizer, steps=10, batches=data)
        if epoch > 2:
            average.update_parameters(model)
            schedule.step()
    torch.optim.swa_utils.update_bn(data, average)


@healthy
def flow_of_couplings() -> None:
    half = perceptron(10, 32, 20)

    def loss() -> Tensor:
        inputs = examples(32)[0]
        scale, shift = half(inputs[:, :10]).chunk(2, 1)
        changed = inputs[:, 10:] * scale.tanh().exp() + shift
        return changed.square().sum(1).mean() / 2 - scale.tanh().sum(1).mean()

    fit(half, loss)


@healthy
def energy_with_langevin_samples() -> None:
    """Gradients by the inputs, on purpose left on the weights until they are cleared."""
    model = perceptron(2, 32, 1)
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        samples = torch.randn(32, 2)
        for _ in range(3):
            samples = samples.detach().requires_grad_()
            model(samples).sum().backward()
            samples = samples - 0.1 * samples.grad + 0.02 * torch.randn_like(samples)
        real = torch.randn(32, 2) * 0.3 + 1
        energies = model(real), model(samples.detach())
        loss = (energies[0] - energies[1]).mean() + sum(each.square().mean() for each in energies)
        update(optimizer, loss)


@healthy
def normalized_weights() -> None:
    """Parametrized weights: spectral norm, weight norm, orthogonal."""
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(20, 32)), nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(32, 32)), nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(32, 32)), nn.Linear(32, 5),
    )  # fmt: skip
    train(model, AdamW(model.parameters()), steps=STEPS)


@healthy
def pruned_during_the_training() -> None:
    from torch.nn.utils import prune

    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=10)
    for at in (0, 4):
        prune.l1_unstructured(model[at], "weight", 0.5)
    train(model, AdamW(model.parameters()), steps=STEPS)
    for at in (0, 4):
        prune.remove(model[at], "weight")


@healthy
def rewound_to_the_start() -> None:
    """Lottery tickets: pruned by size, and set back to the first weights."""
    model = network()
    first = copy.deepcopy(model.state_dict())
    for _ in range(3):
        optimizer = AdamW(model.parameters())
        train(model, optimizer, steps=12)
        mask = {n: (each.abs() > 0.02).float() for n, each in model.state_dict().items()}
        model.load_state_dict({n: each * mask[n].to(each.dtype) for n, each in first.items()})


@healthy
def simulated_quantization() -> None:
    """Quantization-aware training with a straight-through estimator."""

    class Rounded(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            scale = self.weight.detach().abs().max() / 7
            rounded = (self.weight / scale).round() * scale
            return functional.linear(
                inputs, self.weight + (rounded - self.weight).detach(), self.bias
            )

    model = nn.Sequential(Rounded(20, 64), nn.ReLU(), Rounded(64, 5))
    train(model, AdamW(model.parameters()), steps=STEPS)


@healthy
def complex_weights() -> None:
    model = nn.Sequential(
        nn.Linear(20, 16, dtype=torch.complex64), nn.Linear(16, 5).to(torch.cfloat)
    )

    def loss() -> Tensor:
        inputs, labels = examples()
        return functional.cross_entropy(model(inputs.to(torch.complex64)).abs(), labels)

    fit(model, loss)


@healthy
def parameters_of_a_function() -> None:
    """No module at all: tensors that require gradients."""
    weight, bias = torch.randn(20, 5, requires_grad=True), torch.zeros(5, requires_grad=True)
    optimizer = AdamW([weight, bias], 1e-2)
    for _ in range(STEPS):
        inputs, labels = examples()
        update(optimizer, functional.cross_entropy(inputs @ weight + bias, labels))


@healthy
def style_of_an_image() -> None:
    """The input is trained, and the network is frozen in evaluation mode."""
    model = network().eval().requires_grad_(False)
    image = torch.randn(16, 20, requires_grad=True)
    target = torch.arange(16) % 5
    optimizer = Adam([image], 0.05)
    for _ in range(STEPS):
        update(optimizer, functional.cross_entropy(model(image), target))


@healthy
def lazy_layers() -> None:
    model = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(5))
    model(examples()[0])
    train(model, AdamW(model.parameters()), steps=STEPS)


@healthy
def stochastic_depth() -> None:
    """Each block is left out of half of the passes."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 5)
            self.blocks = nn.ModuleList(perceptron(32, 32, 32) for _ in range(6))

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs)
            for block in self.blocks:
                if not self.training or random.random() < 0.5:
                    hidden = hidden + block(hidden)
            return self.last(hidden)

    model = Deep()
    train(model, AdamW(model.parameters()), steps=STEPS)


# Several models.


def adversarial(critic_steps: int, penalty: float) -> None:
    """Points on a ring, and a critic with an optional penalty of its gradients."""
    generator, critic = perceptron(4, 32, 2), perceptron(2, 32, 1)
    optimizers = [Adam(each.parameters(), 1e-3, betas=(0.5, 0.9)) for each in (generator, critic)]
    for _ in range(STEPS):
        for _ in range(critic_steps):
            real = functional.normalize(torch.randn(32, 2))
            made = generator(torch.randn(32, 4)).detach()
            loss = critic(made).mean() - critic(real).mean()
            if penalty:
                between = torch.lerp(real, made, torch.rand(32, 1)).requires_grad_()
                (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
                loss = loss + penalty * (slope.norm(dim=1) - 1).square().mean()
            else:
                loss = functional.softplus(critic(made)).mean()
                loss = loss + functional.softplus(-critic(real)).mean()
            update(optimizers[1], loss)
        update(optimizers[0], functional.softplus(-critic(generator(torch.randn(32, 4)))).mean())


@healthy
def adversarial_by_turns() -> None:
    adversarial(1, 0.0)


@healthy
def critic_with_a_penalty() -> None:
    adversarial(4, 10.0)


@healthy
def images_of_two_domains() -> None:
    """Two generators in one optimizer, two critics in another, which is frozen in turn."""
    generators = nn.ModuleList([perceptron(8, 32, 8), perceptron(8, 32, 8)])
    critics = nn.ModuleList([perceptron(8, 32, 1), perceptron(8, 32, 1)])
    optimizers = [Adam(each.parameters(), 1e-3) for each in (generators, critics)]
    for _ in range(STEPS):
        domains = torch.randn(16, 8), torch.randn(16, 8) * 0.5 + 1
        critics.requires_grad_(False)
        made = generators[0](domains[0]), generators[1](domains[1])
        cycle = (generators[1](made[0]) - domains[0]).abs().mean()
        cycle = cycle + (generators[0](made[1]) - domains[1]).abs().mean()
        loss = cycle + sum((c(m) - 1).square().mean() for c, m in zip(critics, made, strict=True))
        update(optimizers[0], loss)
        critics.requires_grad_(True)
        losses = [
            (critic(real) - 1).square().mean() + critic(each.detach()).square().mean()
            for critic, real, each in zip(critics, domains[::-1], made, strict=True)
        ]
        update(optimizers[1], sum(losses))


@healthy
def distilled() -> None:
    teacher, student = network(), perceptron(20, 16, 5)
    teacher.load_state_dict(checkpoint())
    teacher.eval()

    def loss() -> Tensor:
        inputs = examples(32)[0]
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        return functional.kl_div(student(inputs).log_softmax(1), wanted, reduction="batchmean")

    fit(student, loss)


def momentum_encoder(*, has_predictor: bool) -> None:
    """BYOL, or DINO with a centre: the target is an average of the model."""
    online, predictor = perceptron(20, 64, 16), perceptron(16, 32, 16)
    target = copy.deepcopy(online).requires_grad_(False)
    model = nn.ModuleList([online, predictor] if has_predictor else [online])
    optimizer, centre = AdamW(model.parameters(), 1e-3), torch.zeros(16)
    for _ in range(STEPS):
        inputs = examples(32)[0]
        views = [inputs + 0.2 * torch.randn_like(inputs) for _ in range(2)]
        wanted = target(views[1])
        if has_predictor:
            made = functional.normalize(predictor(online(views[0])))
            loss = 2 - 2 * (made * functional.normalize(wanted)).sum(1).mean()
        else:
            shares = ((wanted - centre) / 0.1).softmax(1)
            loss = -(shares * (online(views[0]) / 0.2).log_softmax(1)).sum(1).mean()
            centre = centre.lerp(wanted.mean(0), 0.1)
        update(optimizer, loss)
        with torch.no_grad():
            for each, own in zip(target.parameters(), online.parameters(), strict=True):
                each.lerp_(own, 0.05)


@healthy
def bootstrapped_views() -> None:
    momentum_encoder(has_predictor=True)


@healthy
def self_distillation() -> None:
    momentum_encoder(has_predictor=False)


@healthy
def contrast_of_views() -> None:
    model = perceptron(20, 64, 16)

    def loss() -> Tensor:
        inputs = examples(32)[0]
        one, other = (
            functional.normalize(model(inputs + 0.2 * torch.randn_like(inputs))) for _ in range(2)
        )
        return functional.cross_entropy(one @ other.T / 0.2, torch.arange(32))

    fit(model, loss)


@healthy
def values_with_a_target_network() -> None:
    """Q-learning with a replay memory; the target is copied every few steps."""
    model = perceptron(4, 32, 2)
    target = copy.deepcopy(model)
    optimizer, memory = Adam(model.parameters(), 1e-3), deque(maxlen=200)
    for step in range(STEPS):
        state = torch.randn(8, 4)
        with torch.no_grad():
            action = model(state).argmax(1)
        memory.append((state, action, (action == (state[:, 0] > 0)).float(), torch.randn(8, 4)))
        state, action, reward, following = random.choice(memory)
        with torch.no_grad():
            wanted = reward + 0.9 * target(following).max(1).values
        chosen = model(state).gather(1, action[:, None])[:, 0]
        update(optimizer, functional.smooth_l1_loss(chosen, wanted))
        if step % 10 == 9:
            target.load_state_dict(model.state_dict())


@healthy
def actor_and_critics() -> None:
    """Soft actor-critic: three optimizers, two targets that follow, a temperature."""
    actor = perceptron(4, 32, 2)
    critics = nn.ModuleList([perceptron(5, 32, 1), perceptron(5, 32, 1)])
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.zeros((), requires_grad=True)
    optimizers = [
        Adam(actor.parameters(), 1e-3),
        Adam(critics.parameters(), 1e-3),
        Adam([log_alpha], 1e-3),
    ]

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = actor(state).chunk(2, 1)
        policy = torch.distributions.Normal(mean, log_scale.clamp(-4, 1).exp())
        action = policy.rsample()
        return action, policy.log_prob(action)

    for _ in range(STEPS):
        state, following, done = torch.randn(32, 4), torch.randn(32, 4), torch.rand(32, 1) < 0.1
        action = torch.randn(32, 1)
        reward = -(action - state[:, :1]).square()
        with torch.no_grad():
            after, log_prob = act(following)
            values = [each(torch.cat([following, after], 1)) for each in targets]
            wanted = reward + 0.9 * ~done * (torch.minimum(*values) - log_alpha.exp() * log_prob)
        loss = sum((c(torch.cat([state, action], 1)) - wanted).square().mean() for c in critics)
        update(optimizers[1], loss)
        made, log_prob = act(state)
        value = torch.minimum(*[each(torch.cat([state, made], 1)) for each in critics])
        update(optimizers[0], (log_alpha.detach().exp() * log_prob - value).mean())
        update(optimizers[2], -(log_alpha * (log_prob.detach() - 1)).mean())
        with torch.no_grad():
            for each, own in zip(targets.parameters(), critics.parameters(), strict=True):
                each.lerp_(own, 0.05)


@healthy
def policy_gradient_in_epochs() -> None:
    """PPO: rollouts without gradients, several epochs over each, advantages that are normalized."""
    model = nn.ModuleDict(
        {"body": perceptron(4, 32), "policy": nn.Linear(32, 3), "value": nn.Linear(32, 1)}
    )
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(12):
        state = torch.randn(64, 4)
        with torch.no_grad():
            hidden = model["body"](state).tanh()
            policy = torch.distributions.Categorical(logits=model["policy"](hidden))
            action = policy.sample()
            old, value = policy.log_prob(action), model["value"](hidden)[:, 0]
        reward = (action == (state[:, 0] > 0)).float()
        advantage = reward - value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        data = TensorDataset(state, action, old, advantage, reward)
        for _ in range(2):
            for one, chosen, before, gain, paid in DataLoader(data, 16, shuffle=True):
                hidden = model["body"](one).tanh()
                policy = torch.distributions.Categorical(logits=model["policy"](hidden))
                ratio = (policy.log_prob(chosen) - before).exp()
                loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * (model["value"](hidden)[:, 0] - paid).square().mean()
                update(optimizer, loss - 0.01 * policy.entropy().mean())


@healthy
def learned_initialization() -> None:
    """MAML: inner steps by `functional_call`, a graph of second order."""
    model = perceptron(1, 32, 1)
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(STEPS // 2):
        total = torch.zeros(())
        for _ in range(4):
            phase, points = torch.rand(()) * math.pi, torch.randn(10, 1)
            weights = dict(model.named_parameters())
            inner = torch.func.functional_call(model, weights, points) - (points + phase).sin()
            slopes = torch.autograd.grad(
                inner.square().mean(), [*weights.values()], create_graph=True
            )
            moved = {n: w - 0.05 * s for (n, w), s in zip(weights.items(), slopes, strict=True)}
            points = torch.randn(10, 1)
            outer = torch.func.functional_call(model, moved, points) - (points + phase).sin()
            total = total + outer.square().mean()
        update(optimizer, total / 4)


@healthy
def reptile() -> None:
    """Each task trains a copy; the model goes a part of the way to it."""
    model = perceptron(1, 32, 1)
    for _ in range(8):
        own = copy.deepcopy(model)
        phase = float(torch.rand(())) * math.pi

        def loss(own: nn.Module = own, phase: float = phase) -> Tensor:
            points = torch.randn(10, 1)
            return (own(points) - (points + phase).sin()).square().mean()

        fit(own, loss, SGD(own.parameters(), 0.05), 8)
        with torch.no_grad():
            for each, trained in zip(model.parameters(), own.parameters(), strict=True):
                each.lerp_(trained, 0.3)


@healthy
def federated_averages() -> None:
    """Each round every client trains a copy of the model, and the copies are averaged."""
    model = network()
    clients = [copy.deepcopy(model) for _ in range(3)]
    optimizers = [SGD(each.parameters(), 0.05) for each in clients]
    for _ in range(6):
        for client, optimizer in zip(clients, optimizers, strict=True):
            client.load_state_dict(model.state_dict())
            train(client, optimizer, steps=4)
        states = [each.state_dict() for each in clients]
        model.load_state_dict({n: sum(state[n] for state in states) / 3 for n in states[0]})


@healthy
def population_of_models() -> None:
    """Members of a population; the worst one takes over the weights of the best one."""
    members = [network() for _ in range(3)]
    optimizers = [
        AdamW(each.parameters(), 10.0**-at) for at, each in zip((3, 4, 2), members, strict=True)
    ]
    for _ in range(6):
        for member, optimizer in zip(members, optimizers, strict=True):
            train(member, optimizer, steps=5)
        losses = [evaluate(each.eval(), [examples(64)]) for each in members]
        best, worst = losses.index(min(losses)), losses.index(max(losses))
        members[worst].load_state_dict(members[best].state_dict())
        for each in members:
            each.train()


@healthy
def ensemble_in_one_loop() -> None:
    members = nn.ModuleList(network() for _ in range(3))
    fit(members, lambda: sum(loss_of(each, examples()) for each in members))


@healthy
def folds_of_the_data() -> None:
    data = TensorDataset(*examples(200))
    for fold in range(3):
        model = network()
        kept = [at for at in range(200) if at % 3 != fold]
        held_out = [at for at in range(200) if at % 3 == fold]
        optimizer = AdamW(model.parameters())
        for _ in range(3):
            model.train()
            for batch in DataLoader(Subset(data, kept), 16, shuffle=True, drop_last=True):
                update(optimizer, loss_of(model, batch))
            model.eval()
            evaluate(model, DataLoader(Subset(data, held_out), 32))


@healthy
def several_trainings_with_other_settings() -> None:
    for width in (8, 16, 32):
        for rate in (1e-3, 1e-2):
            model = perceptron(20, width, 5)
            train(model, AdamW(model.parameters(), rate), steps=15)


@healthy
def tasks_in_turn() -> None:
    """Continual learning: a new head for each task, a memory of earlier examples."""
    body, memory = perceptron(20, 64, 32), []
    for task in range(3):
        head = nn.Linear(32, 5)
        model = nn.Sequential(body, head)
        optimizer = AdamW(model.parameters())
        data = TensorDataset(examples(160)[0] + task, examples(160)[1])
        for batch in endless(DataLoader(data, 16, shuffle=True), 20):
            loss = loss_of(model, batch)
            if memory:
                loss = loss + loss_of(model, random.choice(memory))
            update(optimizer, loss)
        memory.append(next(iter(DataLoader(data, 16))))


# Data and evaluations.


def pool_pass(model: nn.Module, pool: Iterable[Any], optimizer: Any, batches: Any) -> None:
    """Train without a loader, and pass a pool through the model in training mode now and then."""
    for step in range(STEPS):
        update(optimizer, loss_of(model, next(batches)))
        if step % 15 == 14:
            with torch.no_grad():
                for inputs, _ in pool:
                    model(inputs)


@healthy
def statistics_estimated_by_hand() -> None:
    model = network()
    pool_pass(model, loader(), AdamW(model.parameters()), iter(examples, None))


@healthy
def statistics_of_unlabelled_data() -> None:
    """Batch normalization is adapted to another domain before the last evaluation."""
    model, other = network(), DataLoader(TensorDataset(examples(160)[0] + 1), 16)
    optimizer = AdamW(model.parameters())
    for _ in range(3):
        train(model, optimizer, steps=12)
        with torch.no_grad():
            for (inputs,) in other:
                model(inputs)
        model.eval()
        evaluate(model, loader())
        model.train()


@healthy
def pool_that_is_scored() -> None:
    """Active learning: the pool is scored, the best examples are labelled, all in one tensor."""
    model, optimizer = network(), None
    inputs, labels = examples(400)
    labelled = torch.arange(64)
    for _ in range(4):
        optimizer = AdamW(model.parameters()) if optimizer is None else optimizer
        for _ in range(10):
            chosen = labelled[torch.randint(len(labelled), (16,))]
            update(optimizer, loss_of(model, (inputs[chosen], labels[chosen])))
        scores = []
        with torch.no_grad():
            for (rows,) in DataLoader(TensorDataset(inputs), 50):
                scores.append(model(rows).softmax(1).amax(1))
        labelled = torch.cat([labelled, torch.cat(scores).argsort()[:16]])


@healthy
def labels_of_its_own() -> None:
    """Pseudo-labels: unlabelled data get labels from the model, and are trained on."""
    model = network()
    optimizer = AdamW(model.parameters())
    unlabelled = DataLoader(TensorDataset(examples(160)[0]), 16)
    for _ in range(4):
        train(model, optimizer, steps=10, batches=loader(shuffle=True))
        model.eval()
        made = []
        with torch.no_grad():
            for (inputs,) in unlabelled:
                made.append((inputs, model(inputs).argmax(1)))
        model.train()
        train(model, optimizer, steps=10, batches=made)


class AttentionWithDropout(nn.Module):
    """Attention whose dropout is on in training mode, and while it samples predictions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(20, 64), nn.Linear(64, 5), kind
        self.samples = False

    def forward(self, inputs: Tensor) -> Tensor:
        heads = self.first(inputs).reshape(-1, 1, 8, 8)
        if self.kind == "always":
            attended = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)
        else:
            is_on = self.training or self.samples
            attended = functional.scaled_dot_product_attention(
                heads, heads, heads, dropout_p=0.2 if is_on else 0.0
            )
        return self.last(attended.flatten(1))


def sample_with_attention(kind: str) -> None:
    """Monte Carlo dropout of attention: several passes of each batch in evaluation mode."""
    model, held_out = AttentionWithDropout(kind), loader()
    optimizer = AdamW(model.parameters())
    for _ in range(4):
        train(model, optimizer, steps=12)
        model.eval()
        model.samples = True
        with torch.no_grad():
            for inputs, _ in held_out:
                torch.stack([model(inputs) for _ in range(8)]).var(0)
        model.samples = False
        model.train()


@healthy
def attention_dropout_on_request() -> None:
    sample_with_attention("on request")


@healthy
def attention_dropout_always_on() -> None:
    sample_with_attention("always")


@healthy
def classes_in_balance() -> None:
    data = TensorDataset(*examples(160))
    sampler = WeightedRandomSampler(torch.rand(160), 160)
    model = network()
    train(
        model, AdamW(model.parameters()), steps=STEPS, batches=DataLoader(data, 16, sampler=sampler)
    )


@healthy
def mixed_examples() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for inputs, labels in endless(loader(shuffle=True), STEPS):
        order, share = torch.randperm(len(inputs)), float(torch.rand(()))
        output = model(share * inputs + (1 - share) * inputs[order])
        losses = [functional.cross_entropy(output, each) for each in (labels, labels[order])]
        update(optimizer, share * losses[0] + (1 - share) * losses[1])


@healthy
def episodes_of_few_examples() -> None:
    """Prototypical networks: an episode of five classes from a data set that draws by itself."""

    class Episodes(Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
            centres = torch.randn(5, 20)
            draws = [centres[:, None] + 0.5 * torch.randn(5, 4, 20) for _ in range(2)]
            return draws[0], draws[1]

    model = perceptron(20, 32, 16)
    optimizer = AdamW(model.parameters())
    for support, queries in endless(DataLoader(Episodes(), None), STEPS):
        prototypes = model(support).mean(1)
        distances = torch.cdist(model(queries).flatten(0, 1), prototypes)
        update(
            optimizer, functional.cross_entropy(-distances, torch.arange(5).repeat_interleave(4))
        )


@healthy
def one_batch_by_heart() -> None:
    """A first trial: the model has to learn one batch."""
    model, batch = network(), examples()
    fit(model, lambda: loss_of(model, batch))


@healthy
def whole_data_in_each_step() -> None:
    model, batch = perceptron(20, 64, 5), examples(300)
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        update(optimizer, loss_of(model, batch))
        if step % 10 == 9:
            evaluate(model, [examples(100)])


@healthy
def stopped_early() -> None:
    """The best weights are loaded at the end."""
    model, held_out = network(), loader()
    optimizer, best, kept = AdamW(model.parameters()), math.inf, {}
    for _ in range(6):
        model.train()
        train(model, optimizer, steps=10, batches=loader(shuffle=True))
        model.eval()
        loss = evaluate(model, held_out)
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    evaluate(model, held_out)


@healthy
def resumed() -> None:
    """Model, optimizer and schedule are loaded, as on a resume."""
    state: list[Any] = []
    for _ in range(2):
        model = network()
        optimizer = AdamW(model.parameters())
        schedule = schedules.CosineAnnealingLR(optimizer, 200)
        for each, known in zip((model, optimizer, schedule), state, strict=False):
            each.load_state_dict(known)
        train(model, optimizer, steps=30, schedule=schedule)
        state = [copy.deepcopy(each.state_dict()) for each in (model, optimizer, schedule)]


@healthy
def steps_left_out_for_bad_gradients() -> None:
    """Some losses are infinite; their steps are left out by the loop."""
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        inputs, labels = examples()
        optimizer.zero_grad()
        loss = loss_of(model, (inputs, labels))
        if step % 13 == 12:
            continue
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@healthy
def scaled_losses() -> None:
    model = network()
    optimizer, scaler = SGD(model.parameters(), 0.05), torch.amp.GradScaler("cpu", 2.0**20)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, examples())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@healthy
def tasks_by_turns() -> None:
    """Several heads, of which each step trains one."""
    body, heads = perceptron(20, 64, 32), nn.ModuleList(nn.Linear(32, 5) for _ in range(3))
    model = nn.ModuleList([body, heads])
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        inputs, labels = examples()
        update(optimizer, functional.cross_entropy(heads[step % 3](body(inputs).tanh()), labels))


@healthy
def losses_weighed_by_their_gradients() -> None:
    """GradNorm: two losses, whose gradients are measured alone before the update."""
    model, heads = perceptron(20, 32), nn.ModuleList([nn.Linear(32, 5), nn.Linear(32, 5)])
    optimizer = AdamW(nn.ModuleList([model, heads]).parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        hidden = model(inputs).tanh()
        losses = [functional.cross_entropy(head(hidden), labels) for head in heads]
        norms = [torch.autograd.grad(each, hidden, retain_graph=True)[0].norm() for each in losses]
        update(optimizer, sum(each / norm for each, norm in zip(losses, norms, strict=True)))


@healthy
def reversed_gradients() -> None:
    """Domain adaptation: the gradient of the domain's loss is turned before the body."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, inputs: Tensor) -> Tensor:
            return inputs.view_as(inputs)

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            return -gradient

    model = nn.ModuleList([perceptron(20, 32), nn.Linear(32, 5), nn.Linear(32, 2)])

    def loss() -> Tensor:
        inputs, labels = examples()
        hidden = model[0](inputs).tanh()
        domains = model[2](Reverse.apply(hidden))
        wrong = functional.cross_entropy(domains, torch.arange(16) % 2)
        return functional.cross_entropy(model[1](hidden), labels) + 0.1 * wrong

    fit(model, loss)


@healthy
def curriculum_of_lengths() -> None:
    model = Language(tied=False)
    optimizer = AdamW(model.parameters(), 2e-3)
    for length in (4, 6, 8, 12):
        for _ in range(15):
            update(optimizer, model.loss(sequences(length)))


@healthy
def layers_added_during_the_training() -> None:
    """A network that grows: another block, another optimizer."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    train(model, AdamW(model.parameters()), steps=25)
    model = nn.Sequential(*model[:2], nn.Linear(32, 32), nn.ReLU(), model[2])
    train(model, AdamW(model.parameters()), steps=25)


@healthy
def last_layer_reset_now_and_then() -> None:
    """Against a bias to early examples: the head is initialized again after each phase."""
    model = network()
    for _ in range(3):
        train(model, AdamW(model.parameters()), steps=25)
        model[6].reset_parameters()


@healthy
def loss_with_centres() -> None:
    """A loss with parameters of its own, in an optimizer of its own."""
    model, centres = perceptron(20, 32, 8), nn.Parameter(torch.randn(5, 8))
    optimizers = [AdamW(model.parameters()), SGD([centres], 0.1)]
    for _ in range(STEPS):
        inputs, labels = examples()
        hidden = model(inputs)
        loss = functional.cross_entropy(-torch.cdist(hidden, centres), labels)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()


@healthy
def fine_tuned_with_a_new_head() -> None:
    """A load with `strict=False` lacks the head, which the optimizer has."""
    model = network()
    known = {name: each for name, each in checkpoint().items() if not name.startswith("6.")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.load_state_dict(known, strict=False)
    train(model, AdamW(model.parameters(), 1e-4), steps=STEPS)


@healthy
def norms_in_float32_under_low_precision() -> None:
    """Mixed by hand: matrices in bfloat16, norms in float32."""
    model = network().bfloat16()
    model[1].float()

    class Cast(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs.float()).bfloat16()

    model[1] = Cast(model[1])
    train(model, AdamW(model.parameters(), 1e-3), steps=STEPS)
