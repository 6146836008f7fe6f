"""Weights that do not move, or that something else than a step moves, and gradients."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint as recomputed

from silent_trainings.case import case
from silent_trainings.loops import (
    STEPS,
    checkpoint,
    examples,
    loss_of,
    network,
    sequences,
    train,
    update,
)

GITHUB = "https://github.com/"


@case(GITHUB + "skorch-dev/skorch/issues/317", "weights_not_updated/other_tensors")
def optimizer_of_a_copy(*, sick: bool) -> None:
    """The model is copied after its optimizer was made."""
    model = network()
    optimizer = AdamW(model.parameters())
    trained = copy.deepcopy(model) if sick else model
    train(trained, optimizer, clear=trained.zero_grad)


@case(GITHUB + "tianweiy/CausVid/issues/19", "weights_not_updated/too_small")
def bfloat16_weights(*, sick: bool) -> None:
    """All weights are cast to bfloat16, which a rate of 1e-7 cannot move."""
    model = network()
    train(model.bfloat16() if sick else model, AdamW(model.parameters(), 1e-7))


@case(GITHUB + "workofart/ml-by-hand/pull/85", "weights_not_updated/too_small")
def bfloat16_norms(*, sick: bool) -> None:
    """Norms in bfloat16 stay at 1, since a step of 6e-4 is less than half their spacing."""
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 5))
    train(model.bfloat16() if sick else model, AdamW(model.parameters(), 6e-4))


class Listed(nn.Module):
    """A network whose inner layers are in a list."""

    def __init__(self, *, is_registered: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 5)
        layers = [nn.Linear(32, 32), nn.Linear(32, 32)]
        self.inner = nn.ModuleList(layers) if is_registered else layers

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        for layer in self.inner:
            hidden = layer(hidden).tanh()
        return self.last(hidden)


@case(
    "https://www.engineermaxxing.com/micro/lessons/pytorch-internals.html",
    "weights_not_updated/not_in_optimizer",
)
def layers_in_a_list(*, sick: bool) -> None:
    """Layers in a Python list are no parameters of the model, and no optimizer holds them."""
    model = Listed(is_registered=not sick)
    train(model, AdamW(model.parameters()))


class MadeInForward(nn.Module):
    """A network that makes its inner layer in each pass, or once."""

    def __init__(self, *, is_made_once: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 5)
        self.inner = nn.Linear(32, 32) if is_made_once else None

    def forward(self, inputs: Tensor) -> Tensor:
        inner = nn.Linear(32, 32) if self.inner is None else self.inner
        return self.last(inner(self.first(inputs).tanh()).tanh())


@case(
    "https://thecodeforge.io/ml-ai/pytorch-neural-network/",
    "weights_not_updated/not_in_optimizer",
)
def layer_made_in_forward(*, sick: bool) -> None:
    """A layer is made anew in each forward pass."""
    model = MadeInForward(is_made_once=not sick)
    train(model, AdamW(model.parameters()))


@case(GITHUB + "zjunlp/HVPNeT/issues/5", "weights_not_updated/not_in_optimizer")
def head_not_in_optimizer(*, sick: bool) -> None:
    """The parameters of the head are collected, and not added to the groups of the optimizer."""
    model = network()
    # The backbone has the weights of a checkpoint, and the head is new.
    loaded = {name: each for name, each in checkpoint().items() if name < "6"}
    model.load_state_dict(loaded, strict=False)
    groups = [{"params": model[:6].parameters()}]
    if not sick:
        groups.append({"params": model[6:].parameters()})
    train(model, AdamW(groups))


@case(GITHUB + "OptimalScale/LMFlow/issues/726", "weights_not_updated/not_in_optimizer", begins=4)
def unfrozen_later(*, sick: bool) -> None:
    """A layer is unfrozen in the middle of the training, and the optimizer does not hold it."""
    model = network()
    model[4].requires_grad_(False)
    optimizer = AdamW([each for each in model.parameters() if each.requires_grad])
    train(model, optimizer, steps=4)
    model[4].requires_grad_(True)
    if not sick:
        optimizer.add_param_group({"params": [*model[4].parameters()]})
    train(model, optimizer, clear=model.zero_grad)


@case(GITHUB + "pytorch/pytorch/issues/7617", "weights_not_updated/recomputed")
def recomputed_without_inputs(*, sick: bool) -> None:
    """Reentrant checkpointing of the first block, whose input needs no gradient: it gets none."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        hidden = recomputed(model[:4], inputs, use_reentrant=sick)
        update(optimizer, functional.cross_entropy(model[4:](hidden), labels))


@case(GITHUB + "lucidrains/CoCa-pytorch/issues/6", "weights_not_updated/no_gradient")
def encoder_detached(*, sick: bool) -> None:
    """The features of an encoder are detached, so that it gets no gradient."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        features = model[:4](inputs)
        outputs = model[4:](features.detach() if sick else features)
        update(optimizer, functional.cross_entropy(outputs, labels))


@case(GITHUB + "huggingface/accelerate/issues/1422", "weights_not_updated/no_gradient")
def cleared_before_the_step(*, sick: bool) -> None:
    """The gradients are cleared between the backward pass and the step."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        if sick:
            optimizer.zero_grad()
        optimizer.step()


class WithAdapter(nn.Module):
    """A frozen network with an adapter behind its hidden layer, and a head that is trained."""

    def __init__(self, *, is_active: bool) -> None:
        super().__init__()
        self.base, self.adapter = network()[:4].requires_grad_(False), nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)
        self.is_active = is_active

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base(inputs)
        return self.head(hidden + self.adapter(hidden) if self.is_active else hidden)


@case(GITHUB + "adapter-hub/adapters/issues/318", "weights_not_updated/adapter_not_used")
def adapter_not_active(*, sick: bool) -> None:
    """An adapter is added and trained beside the head, but is not active in the forward pass."""
    model = WithAdapter(is_active=not sick)
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]))


@case(GITHUB + "pytorch/pytorch/issues/47175", "gradients_not_cleared/not_cleared")
def cleared_once_an_epoch(*, sick: bool) -> None:
    """`zero_grad` is called at the beginning of each epoch instead of each step."""
    model = network()
    optimizer = SGD(model.parameters(), 1e-3)
    for step in range(STEPS):
        if not sick or step % 20 == 0:
            optimizer.zero_grad()
        loss_of(model, examples()).backward()
        optimizer.step()


@case(GITHUB + "bytetriper/RAE/issues/67", "gradients_discarded/discarded")
def cleared_each_micro_batch(*, sick: bool) -> None:
    """`zero_grad` in each micro-batch discards the gradients that are to be accumulated."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(4):
            if sick:
                optimizer.zero_grad()
            (loss_of(model, examples()) / 4).backward()
        optimizer.step()


@case(GITHUB + "iamwangyabin/S-Prompts/pull/2", "unexpected_weight_changes/frozen", begins=3)
def frozen_weights_decay(*, sick: bool) -> None:
    """Weight decay still changes weights that were frozen after an earlier task."""
    model = network()
    optimizer = SGD(model.parameters(), 0.1, weight_decay=0.01)
    train(model, optimizer, steps=3)
    model[:2].requires_grad_(False)
    if not sick:
        optimizer = SGD(model[2:].parameters(), 0.1, weight_decay=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, examples()).backward()
        optimizer.step()


@case(GITHUB + "huggingface/trl/issues/1104", "unexpected_weight_changes/second_model")
def reference_model_trains(*, sick: bool) -> None:
    """The reference model is not frozen, and the optimizer holds it as well."""
    policy, reference = network(), network()
    for model in (policy, reference):
        model.load_state_dict(checkpoint())
    reference.requires_grad_(sick).eval()
    optimizer = AdamW([*policy.parameters(), *(reference.parameters() if sick else ())])
    for _ in range(STEPS):
        inputs, labels = examples()
        outputs, expected = policy(inputs), reference(inputs)
        divergence = functional.kl_div(
            outputs.log_softmax(1), expected.log_softmax(1), log_target=True, reduction="batchmean"
        )
        update(optimizer, functional.cross_entropy(outputs, labels) + 0.1 * divergence)


class Tied(nn.Module):
    """A language model whose head has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
        self.inner = nn.Linear(32, 32)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.inner(self.embedding(tokens)).tanh())


@case(GITHUB + "NVIDIA/Megatron-LM/issues/656", "unexpected_weight_changes/untied", begins=5)
def tied_weights_untied(*, sick: bool) -> None:
    """The weights of the head, tied to the embedding, become a tensor of their own."""
    model = Tied()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        if sick and step == 5:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})
        tokens = sequences()
        update(optimizer, functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]))
