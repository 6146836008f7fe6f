"""Small real trainings whose layers are measured, healthy or broken on purpose, on one core.

The statistics are computed with autograd's own gradients, in float64, apart from the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.layer_statistics import LAYER_STATISTICS, LayerSum
from sentinel.testing import event

UPDATE_RATIO = list(LAYER_STATISTICS).index("layer_update_ratio")

FEATURES, CLASSES, EXAMPLES, WIDTH = 16, 8, 2048, 32

Loss = Callable[[nn.Module, Tensor, Tensor, int], Tensor]


def _loss(model: nn.Module, inputs: Tensor, labels: Tensor, _step: int) -> Tensor:
    return cross_entropy(model(inputs), labels)


@dataclass
class LayerTraining:
    """A training of `count` steps; its layers are measured at the first and each `every`th step.

    `optimizer` is built from the parameters that are trained. `factor` is that of the learning rate
    by step, `loss` the loss of a batch, `clip` the highest norm of the gradient.
    """

    model: nn.Module
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    count: int = 400
    every: int = 10
    batch: int = 64
    seed: int = 0
    factor: Callable[[int], float] = lambda _: 1.0
    loss: Loss = _loss
    clip: float = float("inf")
    examples: int = EXAMPLES
    special: str = "-"
    """Prefix of the parameters of a second group, whose learning rate is multiplied by `times`."""
    times: float = 0.0

    def records(self) -> Iterator[Record]:
        """Train, with the loss, gradient norm and learning rate of each step, and the layers."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from self._train()
        finally:
            torch.set_num_threads(threads)

    def _train(self) -> Iterator[Record]:
        torch.manual_seed(self.seed)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        meter = LayerMeter(self.model)
        optimizer = self.optimizer([p for n, p in named if not self._is_special(n)])
        special = [p for n, p in named if self._is_special(n)]
        rate = self.times * optimizer.param_groups[0]["lr"]
        optimizer.add_param_group({"params": special, "lr": rate})
        rates = [group["lr"] for group in optimizer.param_groups]
        inputs, labels = make_examples(self.examples, self.seed)
        for step in range(1, self.count + 1):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * self.factor(step)
            chosen = torch.randint(self.examples, (self.batch,))
            loss = self.loss(self.model, inputs[chosen], labels[chosen], step)
            self.model.zero_grad()
            loss.backward()
            is_measured = step == 1 or step % self.every == 0
            if is_measured:
                meter.before_step()
            norm = float(nn.utils.clip_grad_norm_([p for _, p in named], self.clip))
            optimizer.step()
            logged = {"loss": loss.item(), "grad_norm": norm, "learning_rate": rates[0]}
            yield event(Event.STEP, step, time=float(step), **logged)
            if is_measured:
                yield layers_record(step, meter.after_step())

    def _is_special(self, name: str) -> bool:
        return name.startswith(self.special) or name.endswith(self.special)


class LayerMeter:
    """Measures the layers of a model around a step of its optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            layer = (name.rpartition(".")[0] or name).split(".lora_")[0]
            if parameter.requires_grad:
                self._layers.setdefault(layer, []).append(parameter)
        self._values: dict[str, float] = {}
        self._weights_before: dict[str, Tensor] = {}

    def before_step(self) -> None:
        """Measure the gradients, before they are clipped."""
        self._values = {}
        for layer, parameters in self._layers.items():
            gradients = [p.grad.flatten().double() for p in parameters if p.grad is not None]
            whole = torch.cat(gradients) if gradients else torch.full((1,), float("nan"))
            share = float((whole == 0).double().mean()) if gradients else float("nan")
            self._values[f"layer_grad_norm/{layer}"] = float(whole.norm())
            self._values[f"layer_grad_zero_share/{layer}"] = share
        self._weights_before = self._weights()

    def after_step(self) -> dict[str, float]:
        """The values of the record: those of the gradients, and the ratio of the update."""
        after = self._weights()
        for layer, old in self._weights_before.items():
            norm, change = float(old.norm()), float((after[layer] - old).norm())
            sums = LayerSum(elements=old.numel(), update_norm=change, weight_norm=norm)
            self._values[f"layer_update_ratio/{layer}"] = sums.statistics()[UPDATE_RATIO]
        return self._values

    def _weights(self) -> dict[str, Tensor]:
        return {
            layer: torch.cat([p.detach().flatten().double() for p in parameters])
            for layer, parameters in self._layers.items()
        }


def layers_record(step: int, values: dict[str, float]) -> Record:
    """A measurement of the layers of the run."""
    return Record("run", WHOLE_RUN, step, float(step), Event.LAYERS, values)


def make_examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points, and the class that a random linear map and some noise give them."""
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(FEATURES, CLASSES, generator=random)
    inputs = torch.randn(count, FEATURES, generator=random)
    noise = torch.randn(count, CLASSES, generator=random)
    return inputs, (inputs @ weights + 0.5 * noise).argmax(1)


def perceptron(
    depth: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    gain: float = 0.0,
    normalised: bool = False,
) -> nn.Sequential:
    """`depth` hidden layers; with `gain`, normal initial weights of that standard deviation."""
    modules: list[nn.Module] = []
    for at in range(depth):
        modules.append(nn.Linear(WIDTH if at else FEATURES, WIDTH))
        modules += [nn.BatchNorm1d(WIDTH)] if normalised else []
        modules.append(activation())
    modules.append(nn.Linear(WIDTH if depth else FEATURES, CLASSES))
    for module in modules:
        if gain and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, gain / sqrt(module.in_features))
            nn.init.zeros_(module.bias)
    return nn.Sequential(*modules)


class Blocks(nn.Module):
    """Residual blocks between two linear maps; `inner` builds a block."""

    def __init__(self, inner: Callable[[], nn.Module], count: int = 4, drop: float = 0.0) -> None:
        super().__init__()
        self.inputs, self.drop = nn.Linear(FEATURES, WIDTH), drop
        self.blocks = nn.ModuleList(inner() for _ in range(count))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inputs(inputs)
        for block in self.blocks:
            if not (self.drop and torch.rand(()) < self.drop):
                hidden = hidden + block(hidden)
        return self.head(hidden)


class Mixture(nn.Module):
    """Experts, of which each example uses the best by a gate; most get none in a small batch."""

    def __init__(self, experts: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))

    def forward(self, hidden: Tensor) -> Tensor:
        shares = self.gate(hidden).softmax(-1)
        share, chosen = shares.max(-1)
        outputs = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                outputs[mine] = share[mine, None] * expert(hidden[mine])
        return outputs


class Adapted(nn.Module):
    """A frozen linear map with a low-rank adapter, whose second matrix is 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.lora_A = nn.Parameter(torch.randn(4, WIDTH) / sqrt(WIDTH))
        self.lora_B = nn.Parameter(torch.zeros(WIDTH, 4))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.base(hidden) + hidden @ self.lora_A.T @ self.lora_B.T)


class Scaled(nn.Module):
    """A block whose output is multiplied by `scale` at first, as with layer scale or zero init."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), scale))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scale * self.down(torch.relu(self.up(hidden)))


class Attention(nn.Module):
    """A language model of two layers over the signs of the features, with mostly unused rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(512, WIDTH)
        self.positions = nn.Parameter(torch.zeros(FEATURES, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        words = (4 * inputs).long().clamp(-8, 8) + 8
        hidden = self.words(words) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def adam(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, rate)


def sgd(
    rate: float, momentum: float = 0.9, decay: float = 0.0
) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(
        parameters, rate, momentum=momentum, weight_decay=decay
    )


def _policy_loss(model: nn.Module, inputs: Tensor, labels: Tensor, step: int) -> Tensor:
    """REINFORCE in groups of one example; in most steps no group has a spread of rewards."""
    policy = torch.distributions.Categorical(logits=model(inputs[:4].repeat_interleave(8, 0)))
    answers = policy.sample()
    rewards = (answers == labels[:4].repeat_interleave(8)).float().view(4, 8)
    if step % 7:
        rewards = torch.zeros_like(rewards)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    return -(policy.log_prob(answers) * advantages.flatten()).mean()


def _spiking_loss(model: nn.Module, inputs: Tensor, labels: Tensor, step: int) -> Tensor:
    return cross_entropy(model(inputs * (30.0 if step % 97 == 0 else 1.0)), labels)


def _scaled_twice(model: nn.Module, inputs: Tensor, labels: Tensor, step: int) -> Tensor:
    """From step 200 on, a mistake in a backward pass multiplies the gradient of one block."""
    assert isinstance(model, Blocks)
    hidden = model.inputs(inputs)
    for number, block in enumerate(model.blocks):
        change = block(hidden)
        if number == 1 and step >= 200:
            change.register_hook(lambda gradient: 1000.0 * gradient)
        hidden = hidden + change
    return cross_entropy(model.head(hidden), labels)


def _detached(model: nn.Module, inputs: Tensor, labels: Tensor, _step: int) -> Tensor:
    assert isinstance(model, Blocks)
    hidden = model.inputs(inputs)
    for number, block in enumerate(model.blocks):
        hidden = hidden + (block(hidden).detach() if number == 2 else block(hidden))
    return cross_entropy(model.head(hidden), labels)


def _linear() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())


def _with_dead_layer() -> nn.Sequential:
    model = perceptron(4)
    # As after one update that was far too large.
    nn.init.constant_(model[4].bias, -100.0)
    return model


def _half_precision() -> nn.Sequential:
    return perceptron(3, normalised=True).to(torch.bfloat16)


def _bfloat16(model: nn.Module, inputs: Tensor, labels: Tensor, _step: int) -> Tensor:
    return cross_entropy(model(inputs.to(torch.bfloat16)).float(), labels)


def _warmed_up(step: int) -> float:
    """From 0 in 40 steps, then linearly to 0 at step 400."""
    return min((step - 1) / 40, (400 - step) / 360)


Make = Callable[[], LayerTraining]

HEALTHY: dict[str, Make] = {
    "relu": lambda: LayerTraining(perceptron(4), adam(1e-3)),
    "relu, momentum": lambda: LayerTraining(perceptron(4), sgd(0.05)),
    "tanh, full batch": lambda: LayerTraining(
        perceptron(2, nn.Tanh), sgd(0.5, 0.0), batch=512, examples=512
    ),
    "sigmoid, two layers": lambda: LayerTraining(perceptron(2, nn.Sigmoid), adam(3e-3)),
    "batch norm, 12 layers": lambda: LayerTraining(
        perceptron(12, normalised=True), sgd(0.05, decay=5e-4), count=300
    ),
    "warm-up and decay to 0": lambda: LayerTraining(
        perceptron(4), adam(3e-3), factor=_warmed_up, count=410
    ),
    "clipped": lambda: LayerTraining(perceptron(4, gain=2.0), sgd(0.02), clip=0.1),
    "memorising": lambda: LayerTraining(perceptron(3), adam(3e-3), examples=64, count=900),
    "loss spikes": lambda: LayerTraining(perceptron(4), adam(1e-3), loss=_spiking_loss),
    "residual": lambda: LayerTraining(Blocks(_linear), adam(1e-3)),
    "residual, dropped at random": lambda: LayerTraining(
        Blocks(_linear, 6, drop=0.5), adam(1e-3), every=2
    ),
    "mixture of experts": lambda: LayerTraining(
        Blocks(Mixture, 2), adam(1e-3), batch=4, every=2, count=160
    ),
    "adapters": lambda: LayerTraining(Blocks(Adapted), adam(5e-3)),
    "adapters, second matrices at 16 times the rate": lambda: LayerTraining(
        Blocks(Adapted), adam(1e-3), special="lora_B", times=16.0
    ),
    "new head at 10 times the rate": lambda: LayerTraining(
        Blocks(_linear), adam(1e-3), special="head", times=10.0
    ),
    "zero init": lambda: LayerTraining(Blocks(lambda: Scaled(0.0)), adam(1e-3)),
    "layer scale": lambda: LayerTraining(Blocks(lambda: Scaled(1e-6), 8), adam(1e-3)),
    "layer scale, momentum": lambda: LayerTraining(Blocks(lambda: Scaled(1e-3), 8), sgd(0.02)),
    "transformer": lambda: LayerTraining(Attention(), adam(1e-3), count=200),
    "policy": lambda: LayerTraining(
        perceptron(3), adam(1e-3), loss=_policy_loss, every=1, count=160
    ),
    "bfloat16": lambda: LayerTraining(_half_precision(), adam(1e-5), loss=_bfloat16),
}
"""Trainings in which no layer is broken, some of them odd."""

BROKEN: dict[str, tuple[str, Make]] = {
    "ten sigmoids": (
        "layer_gradient_vanishing",
        lambda: LayerTraining(perceptron(10, nn.Sigmoid), sgd(0.1), count=200),
    ),
    "ten sigmoids, Adam": (
        "layer_gradient_vanishing",
        lambda: LayerTraining(perceptron(10, nn.Sigmoid), adam(1e-3), count=200),
    ),
    "20 layers of gain 6": (
        "layer_gradient_exploding",
        lambda: LayerTraining(
            perceptron(20, nn.Tanh, gain=6.0), sgd(1e-3, 0.0), clip=1.0, count=200
        ),
    ),
    "gradient scaled twice from step 200": (
        "layer_gradient_exploding",
        lambda: LayerTraining(Blocks(_linear), adam(1e-3), loss=_scaled_twice, count=240),
    ),
    "dead layer": (
        "layer_gradient_dead",
        lambda: LayerTraining(_with_dead_layer(), adam(1e-3), count=200),
    ),
    "units die of the rate": (
        "layer_gradient_dead",
        lambda: LayerTraining(perceptron(4), sgd(3.0, 0.0)),
    ),
    "detached block": (
        "layer_gradient_dead",
        lambda: LayerTraining(Blocks(_linear), adam(1e-3), loss=_detached, count=200),
    ),
    "block with a rate of 0": (
        "layer_update_ratio",
        lambda: LayerTraining(Blocks(_linear), adam(1e-3), special="blocks.2", count=200),
    ),
    "block with 100 times the rate": (
        "layer_update_ratio",
        lambda: LayerTraining(
            Blocks(_linear), adam(1e-3), special="blocks.2", times=100.0, count=100
        ),
    ),
    "a thousand times the rate": (
        "layer_update_ratio",
        lambda: LayerTraining(perceptron(4), adam(1.0), count=200),
    ),
}
"""Trainings with a broken layer, and the detector that names it."""


def make(kind: str, seed: int) -> LayerTraining:
    """The training of that kind with that seed."""
    torch.manual_seed(seed)
    training = HEALTHY[kind]() if kind in HEALTHY else BROKEN[kind][1]()
    training.seed = seed
    return training
