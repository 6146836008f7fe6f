"""Small trainings with one error that no curve shows at once, and healthy ones beside them.

Each is a function that trains for about 30 steps and logs nothing. `SILENT` has the detector that
names its error; the errors are those of public threads, each written anew.
"""

from __future__ import annotations

import copy
import functools
import io
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
    StepLR,
)
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    TensorDataset,
    get_worker_info,
)

STEPS = 30
Training = Callable[[], None]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64),
        nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip


def examples(count: int = 16) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20)
    return inputs, (inputs[:, :5] + 0.1 * torch.randn(count, 5)).argmax(1)


def loader(**options: bool) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*examples(160)), batch_size=16, **options)


def loss_of(model: nn.Module, batch: Iterable[Tensor]) -> Tensor:
    inputs, labels = batch
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(inputs.to(dtype)), labels)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    batches: Iterable[Iterable[Tensor]] | None = None,
    schedule: LRScheduler | None = None,
    clear: Callable[[], None] | None = None,
    steps: int = STEPS,
) -> None:
    """A training loop as users write it."""
    clear = optimizer.zero_grad if clear is None else clear
    source = iter(examples, None) if batches is None else cycle(batches)
    for _, batch in zip(range(steps), source, strict=False):
        clear()
        loss_of(model, batch).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def step_with_closure(model: nn.Module, optimizer: Optimizer) -> None:
    """A step in which gradients are cleared and computed by its closure, as Lightning's."""

    def closure() -> Tensor:
        model.zero_grad()
        loss = loss_of(model, examples())
        loss.backward()
        return loss

    optimizer.step(closure=closure)


def accumulate(passes: int, *, schedule_by_pass: bool = False) -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    schedule = CosineAnnealingLR(optimizer, 1000)
    for step in range(STEPS):
        for _ in range(passes):
            (loss_of(model, examples()) / passes).backward()
            if schedule_by_pass and step:
                schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if not schedule_by_pass:
            schedule.step()


def written_back(model: nn.Module, optimizer: Optimizer, *names: str) -> None:
    """Write some weights back after each step, as a lost in-place update leaves them."""
    chosen = [(p, p.detach().clone()) for name, p in model.named_parameters() if name in names]

    def write(*_: object) -> None:
        with torch.no_grad():
            for parameter, before in chosen:
                parameter.copy_(before)

    optimizer.register_step_post_hook(write)


def between_steps(
    model: nn.Module, change: Callable[[int], None], *, optimizer: Optimizer | None = None
) -> None:
    """Train, and call `change` with the number of steps before each step."""
    optimizer = AdamW(model.parameters()) if optimizer is None else optimizer
    for step in range(STEPS):
        change(step)
        train(model, optimizer, steps=1)


def reset(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0.0, 0.1)


def gradients_never_cleared() -> None:
    model = network()
    train(model, SGD(model.parameters(), 1e-3), clear=lambda: None)


def gradients_of_another_model_cleared() -> None:
    model, other = network(), network()
    train(model, AdamW(model.parameters()), clear=other.zero_grad)


def optimizer_of_a_copy() -> None:
    model = network()
    optimizer = AdamW(copy.deepcopy(model).parameters())
    train(model, optimizer, clear=model.zero_grad)


def optimizer_of_a_copy_with_closure() -> None:
    model = network()
    optimizer = AdamW(copy.deepcopy(model).parameters())
    for _ in range(STEPS):
        step_with_closure(model, optimizer)


def optimizer_before_replacement() -> None:
    """A layer that is converted after the optimizer was made, as a wrapper that copies does."""
    model = network()
    optimizer = AdamW(model.parameters())
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    train(model, optimizer, clear=model.zero_grad)


def block_not_in_optimizer() -> None:
    model = network()
    chosen = [p for name, p in model.named_parameters() if not name.startswith("4")]
    train(model, AdamW(chosen))


def gradients_cleared_before_the_step() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        loss_of(model, examples()).backward()
        optimizer.zero_grad()
        optimizer.step()


def weights_written_back() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    written_back(model, optimizer, *(name for name, _ in model.named_parameters()))
    train(model, optimizer)


def one_layer_written_back() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    written_back(model, optimizer, "4.weight")
    train(model, optimizer)


def step_that_does_nothing() -> None:
    """As a compiled step that no longer updates (pytorch#115607)."""
    model = network()

    class Lost(AdamW):
        def step(self, closure: object = None) -> None:
            return None

    train(model, Lost(model.parameters()))


def step_that_stops() -> None:
    """As a compiled step that no longer updates after a pass without gradients."""
    model = network()

    class Stopped(AdamW):
        steps = 0

        def step(self, closure: Callable[[], float] | None = None) -> None:
            self.steps += 1
            if self.steps < 4:
                super().step(closure)

    train(model, Stopped(model.parameters()))


def bfloat16_at_a_small_rate() -> None:
    model = network().bfloat16()
    train(model, AdamW(model.parameters(), 1e-7))


def float16_at_a_small_rate() -> None:
    model = network()[4:].half()
    optimizer = AdamW(model.parameters(), 1e-8, eps=1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 64).half()).float().square().mean().backward()
        optimizer.step()


def evaluation_mode_from_the_start() -> None:
    model = network()
    model.eval()
    train(model, AdamW(model.parameters()))


def evaluation_mode_after_a_validation() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        optimizer.step()
        if step == 8:
            model.eval()


def schedule_by_pass() -> None:
    accumulate(4, schedule_by_pass=True)


def schedule_stepped_twice() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    schedule = CosineAnnealingLR(optimizer, 100)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        optimizer.step()
        schedule.step()
        schedule.step()


def first_batch_at_each_step() -> None:
    model, data = network(), loader()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, next(iter(data))).backward()
        optimizer.step()


class OneItem(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A data set that ignores the index."""

    def __init__(self) -> None:
        inputs, labels = examples(1)
        self.item = inputs[0], labels[0]

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.item


def first_batch_with_the_next_one_fetched() -> None:
    """Accelerate's loaders fetch a batch ahead of the one that they give."""
    data, model = loader(), network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        batches = iter(data)
        batch, _ahead = next(batches), next(batches)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def data_set_that_ignores_the_index() -> None:
    model = network()
    train(model, AdamW(model.parameters()), batches=DataLoader(OneItem(), 16, shuffle=True))


def initialized_again() -> None:
    """As `from_pretrained` that initializes what it loaded (transformers#17877)."""
    model = network()
    between_steps(model, lambda step: model.apply(reset) if step == 9 else None)


def head_initialized_at_each_pass() -> None:
    model = network()
    between_steps(model, lambda step: None if step % 5 else model[6].reset_parameters())


def weights_of_another_model_copied() -> None:
    model, other = network(), network()

    def copy_weights(step: int) -> None:
        if step == 12:
            with torch.no_grad():
                for weight, new in zip(model.parameters(), other.parameters(), strict=True):
                    weight.copy_(new)

    between_steps(model, copy_weights)


def frozen_with_gradients_of_zero() -> None:
    """Stages that are frozen too late: momentum and decay still change them."""
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        if step == 6:
            model[:4].requires_grad_(False)
        train(model, optimizer, steps=1, clear=lambda: optimizer.zero_grad(set_to_none=False))


def evaluate_between(
    model: nn.Module,
    held_out: Iterable[Iterable[Tensor]],
    evaluate: Callable[[Iterable[Iterable[Tensor]]], None],
    *,
    data: Iterable[Iterable[Tensor]] | None = None,
) -> None:
    """Train on one data set, and evaluate on another one after every fifth step."""
    optimizer = AdamW(model.parameters())
    batches = cycle(loader(shuffle=True) if data is None else data)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, next(batches)).backward()
        optimizer.step()
        if step % 5 == 4:
            evaluate(held_out)


def without_gradients(model: nn.Module) -> Callable[[Iterable[Iterable[Tensor]]], None]:
    def evaluate(held_out: Iterable[Iterable[Tensor]]) -> None:
        with torch.no_grad():
            for batch in held_out:
                loss_of(model, batch)

    return evaluate


def evaluated_in_training_mode() -> None:
    model = network()
    evaluate_between(model, loader(), without_gradients(model))


def dropout_in_evaluation() -> None:
    """Each batch is fetched with gradients (transformers#33844)."""
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 5))

    def evaluate(held_out: Iterable[Iterable[Tensor]]) -> None:
        for batch in held_out:
            with torch.inference_mode():
                loss_of(model, batch)

    evaluate_between(model, loader(), evaluate)


def scaled_without_autocast() -> None:
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, examples())).backward()
        scaler.step(optimizer)
        scaler.update()


def autocast_around_the_backward_pass() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, examples())
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        optimizer.step()


def every_step_skipped() -> None:
    """The root of 0 has an infinite gradient, and the loss stays finite."""
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(examples()[0])
            loss = outputs.square().mean() + (outputs - outputs).sqrt().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def step_never_called() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()


def step_replaced() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    optimizer.step = lambda: None
    train(model, optimizer)


def checkpoint_with_another_prefix() -> None:
    """That of a wrapped model, loaded without an error."""
    model = network()
    saved = {f"module.{name}": each for name, each in network().state_dict().items()}
    model.load_state_dict(saved, strict=False)
    train(model, AdamW(model.parameters()))


def update_of_passes(
    model: nn.Module,
    optimizer: Optimizer,
    passes: int = 4,
    *,
    between: Callable[[int], None] | None = None,
) -> None:
    """An update whose passes each begin with `zero_grad`; `between` is called before each."""
    for number in range(passes):
        optimizer.zero_grad()
        if between is not None:
            between(number)
        (loss_of(model, examples()) / passes).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def cleared_in_each_pass() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        update_of_passes(model, optimizer)


def zeroed_in_each_pass() -> None:
    """In mixed precision, with gradients that are set to zero."""
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=128.0)
    for _ in range(STEPS):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, examples())
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def cleared_in_each_pass_over_data() -> None:
    """Without a division of the loss, and with batches of several sizes."""
    model = network()
    optimizer = AdamW(model.parameters())
    data = DataLoader([examples(8 + at % 5) for at in range(2 * STEPS)], None, shuffle=True)
    for number, batch in enumerate(data):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if number % 2:
            optimizer.step()


def initialized_after_a_load() -> None:
    """A runner initializes the weights that were loaded (DINOv2_mmseg#1)."""
    model = network()
    model.load_state_dict(network().state_dict())
    model.apply(reset)
    train(model, AdamW(model.parameters()))


def generator_initialized_after_a_load() -> None:
    """The discriminator takes the first step, and has its weights."""
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 20))
    discriminator = nn.Linear(20, 1)
    for model in (generator, discriminator):
        model.load_state_dict(copy.deepcopy(model).state_dict())
    generator.apply(reset)
    optimizers = AdamW(generator.parameters()), AdamW(discriminator.parameters())
    for _ in range(STEPS):
        for number in (1, 0):
            made = generator(torch.randn(16, 8))
            made = made.detach() if number else made
            optimizers[number].zero_grad()
            (discriminator(made) - discriminator(examples()[0])).mean().tanh().backward()
            optimizers[number].step()


Items = list[tuple[Tensor, Tensor]]


def first_repeated(items: Items) -> tuple[Tensor, Tensor]:
    inputs, label = items[0]
    return torch.stack([inputs] * 16), torch.stack([label] * 16)


def one_example_in_each_batch() -> None:
    """A `collate_fn` that stacks the first example (AtacWorks#207)."""
    model, data = network(), loader(shuffle=True)
    data.collate_fn = first_repeated
    train(model, AdamW(model.parameters()), batches=data)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches in one order, each `repeats` times, all of them for each worker or a part."""

    def __init__(self, count: int = 40, *, is_divided: bool, repeats: int = 1) -> None:
        self.batches = [examples() for _ in range(count)]
        self.is_divided, self.repeats = is_divided, repeats

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        is_divided = self.is_divided and worker is not None
        first, spacing = (worker.id, worker.num_workers) if is_divided else (0, 1)
        repeated = [each for each in self.batches for _ in range(self.repeats)]
        for batch in repeated[first::spacing]:
            yield from zip(*batch, strict=True)


def train_on_stream(data: Stream, workers: int = 2) -> None:
    model, batches = network(), DataLoader(data, 16, num_workers=workers)
    train(model, AdamW(model.parameters()), batches=batches)


def stream_on_each_worker() -> None:
    train_on_stream(Stream(is_divided=False))


class Listed(nn.Module):
    """Its inner layers are in a list, and made anew in each pass or once."""

    def __init__(self, *, is_made_once: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 5)
        self.layers = [nn.Linear(32, 32), nn.Linear(32, 32)] if is_made_once else []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        for layer in self.layers or [nn.Linear(32, 32)]:
            hidden = layer(hidden).tanh()
        return self.last(hidden)


def layers_in_a_list() -> None:
    model = Listed(is_made_once=True)
    train(model, AdamW(model.parameters()), clear=model.zero_grad)


def layer_made_in_forward() -> None:
    model = Listed(is_made_once=False)
    train(model, AdamW(model.parameters()))


def layers_in_a_list_in_mixed_precision() -> None:
    """Each weight is cast."""
    model = Listed(is_made_once=True)
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, examples())
        loss.backward()
        optimizer.step()


class Blocks(nn.Module):
    """A network whose first block is recomputed in the backward pass, as Transformers does it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # PyTorch warns once of inputs without a gradient.
            warnings.simplefilter("ignore")
            block = functools.partial(nn.Linear.forward, self.first)
            hidden = checkpoint(block, inputs, use_reentrant=True)
        return self.last(hidden.relu())


def block_without_a_gradient() -> None:
    model = Blocks()
    train(model, AdamW(model.parameters()))


class Adapted(nn.Module):
    """A frozen network with two adapters, of which some are used, and a trained head."""

    def __init__(self, *used: str) -> None:
        super().__init__()
        self.base, self.head = network()[:4].requires_grad_(False), nn.Linear(64, 5)
        self.lora_A = nn.ModuleDict({name: nn.Linear(64, 64) for name in ("first", "second")})
        self.used = used

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base(inputs)
        for name in self.used:
            hidden = hidden + self.lora_A[name](hidden)
        return self.head(hidden)


def no_adapter_used() -> None:
    model = Adapted()
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]))


def without_layer(model: nn.Module, name: str) -> nn.Module:
    """The model with weights of a checkpoint, which lacks those of one layer."""
    saved = {key: each for key, each in network().state_dict().items() if key[0] != name}
    assert model.load_state_dict(saved, strict=False).missing_keys
    return model


def new_head_left_out() -> None:
    model = without_layer(network(), "6")
    train(model, AdamW(model[:6].parameters()), clear=model.zero_grad)


def distil(policy: nn.Module, reference: nn.Module, optimizer: Optimizer) -> None:
    """Train a policy by labels and by its divergence from a reference."""
    for _ in range(STEPS):
        inputs, labels = examples()
        optimizer.zero_grad()
        outputs = policy(inputs)
        divergence = nn.functional.kl_div(
            outputs.log_softmax(1), reference(inputs).log_softmax(1),
            reduction="batchmean", log_target=True,
        )  # fmt: skip
        (nn.functional.cross_entropy(outputs, labels) + divergence).backward()
        optimizer.step()


def reference_in_the_optimizer() -> None:
    policy = network()
    reference = copy.deepcopy(policy).eval()
    distil(policy, reference, AdamW([*policy.parameters(), *reference.parameters()]))


class Tied(nn.Module):
    """A language model whose head has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).tanh())


def train_tied(*, is_untied: bool) -> None:
    model = Tied()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        if is_untied and step == 6:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})
        tokens = torch.randint(20, (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()


def weights_untied() -> None:
    train_tied(is_untied=True)


def schedule_of_epochs() -> None:
    """It is stepped after each batch (SRGAN#94)."""
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, schedule=StepLR(optimizer, 2, 0.1))


def wrapper_alone_in_training_mode() -> None:
    """A generation leaves the wrapped model in evaluation mode (peft#3636)."""
    model = nn.Sequential(network().eval())
    train(model, AdamW(model.parameters()))


class FunctionalDropout(nn.Module):
    """A network whose dropout is a function, given the mode, another one or none."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(20, 64), nn.Linear(64, 5), kind

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        if self.kind == "without":
            return self.last(nn.functional.dropout(hidden, 0.2))
        if self.kind == "attention":
            heads = hidden.reshape(len(hidden), 1, 8, 8)
            dropped = nn.functional.scaled_dot_product_attention(heads, heads, heads, None, 0.2)
            return self.last(dropped.flatten(1))
        return self.last(nn.functional.dropout(hidden, 0.2, self.training))


class Sampled(FunctionalDropout):
    """Its dropout is active in each mode, on purpose."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.first(inputs).relu(), p=0.2, training=True)
        return self.last(hidden)


def train_with_evaluations(model: nn.Module) -> None:
    """Evaluate on data that no loader gives."""
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                loss_of(model, examples())
            model.train()


def dropout_without_the_mode() -> None:
    train_with_evaluations(FunctionalDropout("without"))


def attention_without_the_mode() -> None:
    train_with_evaluations(FunctionalDropout("attention"))


def evaluated_in_training_mode_on_all_data() -> None:
    """The training has no data loader."""
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step % 5 == 4:
            without_gradients(model)(held_out)


class Noise:
    """A transform that draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = random.Random(0)

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs + self.draw()

    def draw(self) -> float:
        return self.generator.gauss(0.0, 0.1)


class Augmented(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Examples that are drawn by a generator once, and changed by transforms."""

    def __init__(self, *transforms: Callable[[Tensor], Tensor]) -> None:
        self.inputs, self.labels = examples(160)
        self.generator = random.Random(0)
        self.order = self.generator.sample(range(160), 160)
        self.transforms = transforms

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[self.order[index]]
        for each in self.transforms:
            inputs = each(inputs)
        return inputs, self.labels[self.order[index]]


def train_on_augmented(
    *transforms: Callable[[Tensor], Tensor],
    workers: int = 2,
    begin: Callable[[int], None] | None = None,
) -> None:
    model = network()
    data = DataLoader(
        Augmented(*transforms), 16, shuffle=True, num_workers=workers, worker_init_fn=begin
    )
    train(model, AdamW(model.parameters()), batches=data)


def workers_with_one_generator() -> None:
    train_on_augmented(Noise())


def workers_with_a_generator_of_the_module() -> None:
    generator = random.Random(0)
    train_on_augmented(lambda inputs: inputs + generator.gauss(0.0, 0.1))


def norms_in_low_precision() -> None:
    """The matrices are in float32, and the scale of the norm stays at 1."""
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 5))
    model[1].bfloat16()
    # In mixed precision layer norms take inputs and weights of two types.
    model[1].register_forward_pre_hook(lambda _, inputs: inputs[0].bfloat16())
    model[1].register_forward_hook(lambda _, __, output: output.float())
    train(model, AdamW(model.parameters(), 6e-4))


def norms_alone() -> None:
    """The condition on names is the wrong way round."""
    model = network()
    for name, weight in model.named_parameters():
        weight.requires_grad = name.startswith("1.")
    train(model, AdamW(model.parameters()))


def prefer(policy: nn.Module, reference: nn.Module, passes: int = 1) -> None:
    """Direct preference optimization (DPO)."""
    optimizer = AdamW(policy.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            inputs, chosen = examples()
            with torch.no_grad():
                expected = reference(inputs).log_softmax(1)
            scores = (policy(inputs).log_softmax(1) - expected).gather(
                1, torch.stack([chosen, (chosen + 1) % 5], 1)
            )
            loss = -nn.functional.logsigmoid(0.1 * (scores[:, 0] - scores[:, 1])).mean()
            (loss / passes).backward()
        optimizer.step()


def policy_and_reference() -> tuple[nn.Module, nn.Module]:
    policy = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))
    return policy, copy.deepcopy(policy).requires_grad_(False)


def reference_of_other_weights() -> None:
    policy, reference = policy_and_reference()
    reference[2].weight.mul_(-20.0)
    prefer(policy, reference)


def reference_that_shares_its_weights() -> None:
    policy, _ = policy_and_reference()
    prefer(policy, copy.copy(policy))


def clipped_to_zero() -> None:
    """A limit of 0 is meant to switch clipping off."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.0)
        optimizer.step()


def schedule_that_repeats() -> None:
    """The period of a cosine is a number of epochs, and it is stepped after each batch."""
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, schedule=CosineAnnealingLR(optimizer, T_max=6))


def autocast_for_another_device() -> None:
    """On a machine without CUDA, PyTorch warns once (lerobot#4537)."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, examples())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Images(nn.Module):
    """A classifier of images with text."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(16, 32), nn.Embedding(20, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return self.head(self.text(input_ids).mean(1) + self.image(pixel_values).mean(1))


def train_on_images(*shape: int) -> None:
    model = Images()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        tokens = torch.randint(20, (8, 6))
        optimizer.zero_grad()
        outputs = model(input_ids=tokens, pixel_values=torch.randn(*shape, 16))
        nn.functional.cross_entropy(outputs, tokens[:, 0] % 5).backward()
        optimizer.step()


def images_in_one_row() -> None:
    train_on_images(1, 8)


def train_adapter_after_load(replace: Callable[[nn.Module], nn.Module]) -> None:
    """Train an adapter that was loaded, or what takes its place, before a frozen loaded model."""
    model = nn.Sequential(nn.Linear(20, 20), loaded().requires_grad_(False))
    weights = nn.Sequential(nn.Linear(20, 20)).state_dict()
    model.load_state_dict(weights, strict=False)
    model[0] = replace(model[0])
    train(model, AdamW(model[0].parameters()))


def loaded_adapter_replaced() -> None:
    train_adapter_after_load(lambda _: nn.Linear(20, 20))


def train_another_adapter(optimizer_state: dict[str, object] | None = None) -> None:
    """Train a new adapter in the place of one that was loaded, which no model had."""
    model = nn.Sequential(loaded(nn.Linear(20, 20)), loaded().requires_grad_(False))
    model[0] = nn.Linear(20, 20)
    optimizer = AdamW(model[0].parameters())
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    train(model, optimizer)


def loaded_adapter_replaced_on_a_resume() -> None:
    adapter = nn.Linear(20, 20)
    earlier = AdamW(adapter.parameters())
    for each in adapter.parameters():
        earlier.state[each] = {
            "step": torch.ones(()),
            "exp_avg": torch.zeros_like(each),
            "exp_avg_sq": torch.ones_like(each),
        }
    train_another_adapter(earlier.state_dict())


SILENT: dict[Training, str] = {
    loaded_adapter_replaced: "weights_not_loaded",
    loaded_adapter_replaced_on_a_resume: "weights_not_loaded",
    images_in_one_row: "inputs_mismatched",
    reference_of_other_weights: "unequal_start",
    reference_that_shares_its_weights: "unequal_start",
    clipped_to_zero: "weights_not_updated",
    schedule_that_repeats: "schedule_too_fast",
    autocast_for_another_device: "autocast_not_in_force",
    workers_with_one_generator: "repeated_batches",
    workers_with_a_generator_of_the_module: "repeated_batches",
    norms_alone: "weights_not_updated",
    norms_in_low_precision: "weights_not_updated",
    block_without_a_gradient: "weights_not_updated",
    no_adapter_used: "weights_not_updated",
    new_head_left_out: "weights_not_updated",
    reference_in_the_optimizer: "unexpected_weight_changes",
    weights_untied: "unexpected_weight_changes",
    schedule_of_epochs: "schedule_too_fast",
    wrapper_alone_in_training_mode: "evaluation_mode",
    dropout_without_the_mode: "evaluation_in_training_mode",
    attention_without_the_mode: "evaluation_in_training_mode",
    evaluated_in_training_mode_on_all_data: "evaluation_in_training_mode",
    layers_in_a_list: "weights_not_updated",
    layer_made_in_forward: "weights_not_updated",
    layers_in_a_list_in_mixed_precision: "weights_not_updated",
    one_example_in_each_batch: "repeated_batches",
    stream_on_each_worker: "repeated_batches",
    initialized_after_a_load: "weights_not_loaded",
    generator_initialized_after_a_load: "weights_not_loaded",
    cleared_in_each_pass: "gradients_discarded",
    zeroed_in_each_pass: "gradients_discarded",
    cleared_in_each_pass_over_data: "gradients_discarded",
    checkpoint_with_another_prefix: "weights_not_loaded",
    step_never_called: "weights_not_updated",
    step_replaced: "weights_not_updated",
    scaled_without_autocast: "autocast_not_in_force",
    autocast_around_the_backward_pass: "autocast_not_in_force",
    every_step_skipped: "steps_skipped",
    evaluated_in_training_mode: "evaluation_in_training_mode",
    dropout_in_evaluation: "evaluation_in_training_mode",
    initialized_again: "unexpected_weight_changes",
    head_initialized_at_each_pass: "unexpected_weight_changes",
    weights_of_another_model_copied: "unexpected_weight_changes",
    frozen_with_gradients_of_zero: "unexpected_weight_changes",
    gradients_never_cleared: "gradients_not_cleared",
    gradients_of_another_model_cleared: "gradients_not_cleared",
    optimizer_of_a_copy: "weights_not_updated",
    optimizer_of_a_copy_with_closure: "weights_not_updated",
    optimizer_before_replacement: "weights_not_updated",
    block_not_in_optimizer: "weights_not_updated",
    gradients_cleared_before_the_step: "weights_not_updated",
    weights_written_back: "weights_not_updated",
    one_layer_written_back: "weights_not_updated",
    step_that_does_nothing: "weights_not_updated",
    step_that_stops: "weights_not_updated",
    bfloat16_at_a_small_rate: "weights_not_updated",
    float16_at_a_small_rate: "weights_not_updated",
    evaluation_mode_from_the_start: "evaluation_mode",
    evaluation_mode_after_a_validation: "evaluation_mode",
    schedule_by_pass: "schedule_too_fast",
    schedule_stepped_twice: "schedule_too_fast",
    first_batch_at_each_step: "repeated_batches",
    first_batch_with_the_next_one_fetched: "repeated_batches",
    data_set_that_ignores_the_index: "repeated_batches",
}


def plain() -> None:
    model = network()
    train(model, AdamW(model.parameters()), batches=loader(shuffle=True))


def plain_sgd_with_momentum() -> None:
    model = network()
    train(model, SGD(model.parameters(), 0.05, momentum=0.9))


def cleared_in_place() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, clear=lambda: optimizer.zero_grad(set_to_none=False))


def cleared_by_hand() -> None:
    model = network()

    def clear() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    train(model, AdamW(model.parameters()), clear=clear)


def accumulated() -> None:
    accumulate(4)


def head_alone() -> None:
    """The backbone is left out of the optimizer, and not frozen."""
    model = network()
    train(model, AdamW(model[-1].parameters()))


def frozen_backbone_in_evaluation_mode() -> None:
    model = network()
    model[:4].requires_grad_(False).eval()
    train(model, AdamW([p for p in model.parameters() if p.requires_grad]))


def frozen_batch_normalization() -> None:
    model = network()
    model[1].eval()
    train(model, AdamW(model.parameters()))


def no_dropout_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    train(model, AdamW(model.parameters()))


def warmed_up() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, schedule=LambdaLR(optimizer, lambda step: min(1.0, step / 25)))


def several_schedules() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    parts: list[LRScheduler] = [
        LinearLR(optimizer, 0.1, total_iters=5),
        CosineAnnealingLR(optimizer, 100),
    ]
    train(model, optimizer, schedule=SequentialLR(optimizer, parts, [5]))


def bfloat16_at_a_usual_rate() -> None:
    model = network().bfloat16()
    train(model, AdamW(model.parameters(), 1e-5))


def embeddings_of_which_few_have_a_gradient() -> None:
    model = nn.Sequential(nn.Embedding(5000, 16), nn.Flatten(), nn.Linear(64, 5))
    optimizer = AdamW(model.parameters(), weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.randint(0, 50, (8, 4))
        nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 5).backward()
        optimizer.step()


def generator_and_discriminator() -> None:
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
    discriminator = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizers = AdamW(generator.parameters()), AdamW(discriminator.parameters())
    loss = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        real, fake = examples()[0], generator(torch.randn(16, 8))
        optimizers[1].zero_grad()
        judged = discriminator(torch.cat([real, fake.detach()]))
        loss(judged, torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(discriminator(fake), torch.ones(16, 1)).backward()
        optimizers[0].step()


def discriminator_frozen_for_the_generator() -> None:
    """Both optimizers take their step after both passes, as the discriminator is frozen."""
    generator = nn.Linear(8, 20)
    discriminator = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizers = AdamW(generator.parameters()), AdamW(discriminator.parameters())
    for _ in range(STEPS):
        fake = generator(torch.randn(16, 8))
        discriminator.requires_grad_(True)
        for optimizer in optimizers:
            optimizer.zero_grad()
        real = discriminator(examples()[0])
        (discriminator(fake.detach()) - real).mean().tanh().backward()
        discriminator.requires_grad_(False)
        discriminator(fake).mean().tanh().neg().backward()
        for optimizer in optimizers:
            optimizer.step()


class LossStep(SGD):
    """Its step has the loss as its argument, and changes the rate by it."""

    def step(self, loss: Tensor) -> None:  # type: ignore[override]
        self.param_groups[0]["lr"] = min(0.1, loss.item())
        super().step()


def step_with_the_loss() -> None:
    model = network()
    optimizer = LossStep(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, examples())
        loss.backward()
        optimizer.step(loss)


class Sharpness(SGD):
    """Sharpness-aware minimization, whose closure has an argument."""

    def step(self, closure: Callable[..., Tensor]) -> None:  # type: ignore[override]
        closure(clears=True)
        weights = [each for group in self.param_groups for each in group["params"]]
        changes = [0.05 * each.grad for each in weights]
        with torch.no_grad():
            for weight, change in zip(weights, changes, strict=True):
                weight.add_(change)
        closure(clears=True)
        with torch.no_grad():
            for weight, change in zip(weights, changes, strict=True):
                weight.sub_(change)
        super().step()


def sharpness_aware() -> None:
    model = network()
    optimizer = Sharpness(model.parameters(), 0.05)

    def closure(*, clears: bool) -> Tensor:
        if clears:
            optimizer.zero_grad()
        loss = loss_of(model, examples())
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def sharpness_through_data() -> None:
    """Sharpness-aware minimization that writes weights without a count, as common code does."""
    model = network()
    optimizer, weights = SGD(model.parameters(), 0.05), [*model.parameters()]
    for _ in range(STEPS):
        before = [each.detach().clone() for each in weights]

        def climb(number: int, before: list[Tensor] = before) -> None:
            for weight, own in zip(weights, before, strict=True):
                weight.data = own + 0.01 * number

        update_of_passes(model, optimizer, 2, between=climb)
        for weight, own in zip(weights, before, strict=True):
            weight.data.copy_(own)


def sharpness_with_a_radius_of_zero() -> None:
    """As a warm-up of the radius: the weights are written, and stay equal."""
    model = network()
    optimizer = SGD(model.parameters(), 0.05)

    def climb(number: int) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.0 * number)

    for _ in range(STEPS):
        update_of_passes(model, optimizer, 2, between=climb)


def embedding_attacked() -> None:
    """Projected gradient descent on one weight, whose passes but the last are discarded."""
    model = nn.Sequential(nn.Embedding(500, 16), nn.Flatten(), nn.Linear(64, 5))
    optimizer, weight = AdamW(model.parameters()), model[0].weight
    for _ in range(STEPS):
        tokens = torch.randint(0, 500, (8, 4))
        own = weight.data.clone()
        for number in range(3):
            if number:
                weight.data.add_(weight.grad, alpha=0.1 / float(weight.grad.norm()))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 5).backward()
        weight.data.copy_(own)
        optimizer.step()


def inputs_attacked() -> None:
    """The fast gradient sign method: the gradients of the first pass are those of the inputs."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        inputs.requires_grad_(True)
        optimizer.zero_grad()
        loss_of(model, (inputs, labels)).backward()
        changed = (inputs + 0.1 * inputs.grad.sign()).detach()
        optimizer.zero_grad()
        loss_of(model, (changed, labels)).backward()
        optimizer.step()


def losses_measured_alone() -> None:
    """The norm of each loss is logged before the gradient of their sum is made."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        outputs = model(examples()[0])
        losses = [outputs.square().mean(), outputs.tanh().mean(), outputs.abs().mean()]
        for loss in losses:
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()


def losses_measured_in_passes() -> None:
    """The norm of each loss is logged, from a pass of its own."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        batch = examples()
        for has_penalty, has_loss in ((True, False), (False, True), (True, True)):
            optimizer.zero_grad()
            penalty = model(batch[0]).square().mean() if has_penalty else torch.zeros(())
            (penalty + loss_of(model, batch) if has_loss else penalty).backward()
        optimizer.step()


def gradients_collected(*, in_place: bool) -> None:
    model, batch = nn.Linear(20, 5), examples()
    optimizer, weights = AdamW(model.parameters()), [*model.parameters()]
    for _ in range(STEPS):
        sums = [torch.zeros_like(each) for each in weights]
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, examples() if in_place else batch).backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            for total, weight in zip(sums, weights, strict=True):
                total.add_(weight.grad)
        for total, weight in zip(sums, weights, strict=True):
            if in_place:
                weight.grad.copy_(total)
            else:
                weight.grad = total
        optimizer.step()


def gradients_of_examples_clipped() -> None:
    """Differential privacy by hand: clipped gradients, here equal ones, are added and set."""
    gradients_collected(in_place=False)


def gradients_of_examples_clipped_in_place() -> None:
    gradients_collected(in_place=True)


def clipped_in_each_pass() -> None:
    """Each pass is clipped with those before it, which writes their gradients."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            loss_of(model, examples()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def batches_left_out() -> None:
    """Three of seven batches have a loss that is too large."""
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(8 * STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        if step % 7 in {1, 3, 5, 6}:
            optimizer.step()


def compared_with_earlier_tasks() -> None:
    """Gradients of a memory, which are projected out where they point elsewhere (A-GEM)."""
    model, memory = network(), examples(64)
    optimizer, weights = SGD(model.parameters(), 0.05), [*model.parameters()]
    for _ in range(3 * STEPS):
        optimizer.zero_grad()
        loss_of(model, memory).backward()
        kept = [each.grad.clone() for each in weights]
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        product = sum(
            float((one.grad * other).sum()) for one, other in zip(weights, kept, strict=True)
        )
        if product < 0.0:
            size = sum(float(each.square().sum()) for each in kept)
            for one, other in zip(weights, kept, strict=True):
                one.grad.sub_(other, alpha=product / size)
        optimizer.step()


def compare_agreeing_tasks(
    batches: Iterable[Iterable[Tensor]], memory: int, *, is_kept: bool = False
) -> None:
    """Continual learning of tasks that agree, so that no gradient is ever projected."""
    model = network()
    optimizer, weights = SGD(model.parameters(), 0.05), [*model.parameters()]
    for _, batch in zip(range(STEPS), batches, strict=False):
        optimizer.zero_grad()
        loss_of(model, examples(memory)).backward()
        kept = [each.grad if is_kept else each.grad.clone() for each in weights]
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        assert all(one.grad.shape == other.shape for one, other in zip(weights, kept, strict=True))
        optimizer.step()


def compared_with_a_larger_memory() -> None:
    compare_agreeing_tasks(iter(examples, None), 64)


def compared_with_a_memory_that_is_no_data_set() -> None:
    compare_agreeing_tasks(DataLoader([examples() for _ in range(STEPS)], None, shuffle=True), 16)


def compared_with_gradients_that_are_kept() -> None:
    compare_agreeing_tasks(iter(examples, None), 16, is_kept=True)


def generator_not_detached() -> None:
    """The passes of the discriminator make gradients of the generator, which are cleared."""
    generator, discriminator = nn.Linear(8, 20), nn.Linear(20, 1)
    optimizers = AdamW(generator.parameters()), AdamW(discriminator.parameters())
    for _ in range(STEPS):
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            made = generator(torch.randn(16, 8))
            (discriminator(made) - discriminator(examples()[0])).mean().tanh().backward()
            optimizers[1].step()
        optimizers[0].zero_grad()
        discriminator(generator(torch.randn(16, 8))).mean().tanh().neg().backward()
        optimizers[0].step()


def validated() -> None:
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        model.train()
        train(model, optimizer, steps=1)
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                for batch in held_out:
                    loss_of(model, batch)


def lbfgs() -> None:
    model = nn.Linear(20, 5)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1)
    batch = examples(64)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def plain_with_closure() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        step_with_closure(model, optimizer)


def backbone_in_evaluation_mode_beside_its_head() -> None:
    """Batch normalization is frozen, and the head is a model of its own."""
    model = network()
    backbone, head = model[:6].eval(), model[6:]
    optimizer = AdamW([*backbone.parameters(), *head.parameters()])
    for _ in range(STEPS):
        inputs, labels = examples()
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(backbone(inputs)), labels).backward()
        optimizer.step()


class DetachedBody(nn.Module):
    """A body whose output is detached, so that it gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs).relu().detach())


def detached_body() -> None:
    model = DetachedBody()
    train(model, AdamW(model.parameters()))


def one_batch_is_all_the_data() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    data = DataLoader(TensorDataset(*examples(16)), batch_size=16)
    for _ in range(STEPS):
        train(model, optimizer, batches=data, steps=1)


def cleared_through_data() -> None:
    model = network()

    def clear() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()

    train(model, AdamW(model.parameters()), clear=clear)


def norms_too_coarse_for_the_rate() -> None:
    """A warm-up as of DPO: a norm's weights of 1 do not change at a rate of 1e-8."""
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Linear(64, 5))
    train(model, AdamW(model.parameters(), 1e-8))


def group_without_a_rate() -> None:
    model = network()
    groups = [{"params": model[:4].parameters(), "lr": 0.0}, {"params": model[4:].parameters()}]
    train(model, AdamW(groups))


def rate_as_a_tensor() -> None:
    model = network()
    train(model, AdamW(model.parameters(), torch.tensor(0.0)))


def attacked_in_evaluation_mode() -> None:
    """Adversarial training: the attack evaluates the model, the update trains it."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        inputs.requires_grad_(True)
        model.eval()
        for _ in range(4):
            loss_of(model, (inputs, labels)).backward()
        model.train()
        optimizer.zero_grad()
        loss_of(model, (inputs.detach(), labels)).backward()
        optimizer.step()


def data_that_is_not_read() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in DataLoader(torch.zeros(640), 16):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        optimizer.step()


def clipped_weights() -> None:
    """As the critic of a Wasserstein GAN."""
    model = network()

    def clip(step: int) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.clamp_(-0.01, 0.01)

    between_steps(model, clip)


def orthogonal_weights() -> None:
    model = network()

    def project(step: int) -> None:
        with torch.no_grad():
            model[4].weight.copy_(torch.linalg.qr(model[4].weight)[0])

    between_steps(model, project)


def pruned_weights() -> None:
    model = network()

    def prune(step: int) -> None:
        with torch.no_grad():
            for module in model[::4]:
                size = module.weight.abs()
                module.weight.mul_(size > size.quantile(0.025 * step))

    between_steps(model, prune)


def averages_swapped_in_for_an_evaluation() -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        train(model, optimizer, steps=1)
        average.update_parameters(model)
        own = [weight.detach().clone() for weight in model.parameters()]
        for weight, mean in zip(model.parameters(), average.parameters(), strict=True):
            weight.data.copy_(mean.data)
        model.eval()
        loss_of(model, examples())
        model.train()
        for weight, before in zip(model.parameters(), own, strict=True):
            weight.data.copy_(before)


def loaded_again() -> None:
    """Back to other weights by way of a checkpoint."""
    model, other = network(), network()
    between_steps(
        model, lambda step: model.load_state_dict(other.state_dict()) if step == 9 else None
    )


def frozen_without_gradients() -> None:
    model = network()
    between_steps(model, lambda step: model[:4].requires_grad_(step < 6))


def codebook_renewed() -> None:
    """Entries of a codebook that nothing uses are replaced by examples."""
    model = nn.Sequential(nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 5))
    model.register_parameter("codebook", nn.Parameter(torch.randn(64, 16)))
    between_steps(model, lambda step: model.codebook.data.normal_() if step == 9 else None)


def another_model_evaluated() -> None:
    """Averaged weights are evaluated, and the model stays in training mode."""
    model = network()
    average = copy.deepcopy(model).eval()
    evaluate_between(model, loader(), without_gradients(average))


def dropout_on_purpose() -> None:
    """Monte Carlo dropout: the model is in evaluation mode."""
    model = network()

    def evaluate(held_out: Iterable[Iterable[Tensor]]) -> None:
        model.eval()
        model[3].train()
        without_gradients(model)(held_out)
        model.train()

    evaluate_between(model, loader(), evaluate)


def predictions_sampled() -> None:
    """Monte Carlo dropout over a pool: the model is in training mode, several times a batch."""
    model = network()

    def sample(pool: Iterable[Iterable[Tensor]]) -> None:
        with torch.no_grad():
            for inputs, _ in pool:
                for _ in range(5):
                    model(inputs)

    evaluate_between(model, loader(), sample)


def statistics_computed_anew() -> None:
    model, data = network(), loader(shuffle=True)
    evaluate_between(
        model, loader(), lambda held_out: torch.optim.swa_utils.update_bn(held_out, model)
    )
    evaluate_between(model, data, without_gradients(model), data=data)


def labels_made_for_other_data() -> None:
    """Each update has batches of two data sets; one is labelled by the model."""
    model, data, other = network(), loader(), loader()
    optimizer = AdamW(model.parameters())
    for _ in range(3):
        labelled_batches = iter(data)
        for inputs, _ in other:
            with torch.no_grad():
                labels = model(inputs).argmax(1)
            labelled = next(labelled_batches)
            optimizer.zero_grad()
            (loss_of(model, labelled) + loss_of(model, (inputs, labels))).backward()
            optimizer.step()


def mixed_precision() -> None:
    """The first steps are skipped until the scale is found; the head computes in float32."""
    model = network()
    optimizer = AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = examples()
        with torch.autocast("cpu", torch.float16):
            hidden = model[:6](inputs)
        loss = nn.functional.cross_entropy(model[6](hidden.float()), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def autocast_for_a_frozen_part() -> None:
    backbone, head = network()[:6].requires_grad_(False), nn.Linear(64, 5)
    optimizer = AdamW(head.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = examples()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            hidden = backbone(inputs)
        nn.functional.cross_entropy(head(hidden.float()), labels).backward()
        optimizer.step()


def checkpointed_in_mixed_precision() -> None:
    """The graph of the blocks is hidden until the backward pass."""
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = examples()
        inputs.requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = checkpoint(
                lambda values: model[:6](values).float(), inputs, use_reentrant=True
            )
        scaler.scale(nn.functional.cross_entropy(model[6](hidden), labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def parts_loaded() -> None:
    """Larger models, heads, adapters, and a load into a part after a prefix was wrong."""
    model, saved = network(), network().state_dict()
    larger = {f"{part}.{name}": each for name, each in saved.items() for part in "abcdefghijkl"}
    model[4].load_state_dict({"4.weight": saved["4.weight"]}, strict=False)
    model.load_state_dict(
        {**larger, **{name: each for name, each in saved.items() if name < "6"}}, strict=False
    )
    model[6].load_state_dict({"bias": saved["6.bias"]}, strict=False)
    other = {f"body.{name}": each for name, each in saved.items()}
    assert model.load_state_dict(other, strict=False).missing_keys
    model[4].load_state_dict({"weight": saved["4.weight"]}, strict=False)
    train(model, AdamW(model.parameters()))


def loaded(model: nn.Module | None = None) -> nn.Module:
    """A network with weights of a checkpoint."""
    model = network() if model is None else model
    model.load_state_dict(copy.deepcopy(model).state_dict())
    return model


def last_layers_initialized_after_a_load() -> None:
    model = loaded()
    model[4:].apply(reset)
    train(model, AdamW(model.parameters()))


def loaded_and_cast() -> None:
    model = loaded().bfloat16()
    train(model, AdamW(model.parameters()))


def loaded_and_quantized() -> None:
    model = loaded()
    with torch.no_grad():
        for module in model[::2]:
            if isinstance(module, nn.Linear):
                step = module.weight.abs().max() / 4
                module.weight.copy_((module.weight / step).round() * step)
    train(model, AdamW(model.parameters()))


def loaded_and_pruned() -> None:
    model = loaded()
    with torch.no_grad():
        for module in model[::4]:
            size = module.weight.abs()
            module.weight.mul_(size > size.quantile(0.8))
    train(model, AdamW(model.parameters()))


def loaded_and_merged() -> None:
    """An adapter of low rank is merged into each weight."""
    model = loaded()
    for module in model[::2]:
        if isinstance(module, nn.Linear):
            outputs, inputs = module.weight.shape
            change = torch.randn(outputs, 4) @ torch.randn(4, inputs)
            module.weight.data += 0.05 * change / change.std()
    train(model, AdamW(model.parameters()))


def loaded_and_perturbed() -> None:
    """Shrink and perturb: a warm start that keeps a part of the weights."""
    model = loaded()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5).add_(0.25 * weight.std(correction=0) * torch.randn_like(weight))
    train(model, AdamW(model.parameters()))


def loaded_averages() -> None:
    """The averages of a checkpoint are copied into the model that it gave weights to."""
    model = loaded()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.9 * weight + 0.1 * weight.std(correction=0) * torch.randn_like(weight))
    train(model, AdamW(model.parameters()))


def loaded_and_replaced() -> None:
    """The embedding and the head are for more tokens, and what is between is initialized."""
    model = nn.Sequential(nn.Embedding(40, 64), nn.Flatten(), nn.Linear(256, 64), nn.Linear(64, 40))
    loaded(model)
    model[0], model[3] = nn.Embedding(50, 64), nn.Linear(64, 50)
    model[2].apply(reset)
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        tokens = torch.randint(0, 50, (8, 4))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens[:, 0]).backward()
        optimizer.step()


def part_loaded_again() -> None:
    """The backbone has weights of another checkpoint than the detector that it is a part of."""
    model = nn.Sequential(loaded(), nn.Linear(5, 5))
    model.load_state_dict(copy.deepcopy(model).state_dict())
    model[0].load_state_dict(network().state_dict())
    train(model, AdamW(model.parameters()))


def trained_from_the_start_for_another_fold() -> None:
    model = loaded()
    for fold in range(3):
        train(model, AdamW(model.parameters()))
        if fold:
            model.load_state_dict(network().state_dict())
        model.apply(reset)


def adapter_beside_loaded_weights() -> None:
    """What is loaded stays as it is, and the adapter is initialized afterwards."""
    model, adapter = loaded().requires_grad_(False), nn.Linear(20, 20, bias=False)
    nn.init.zeros_(adapter.weight)
    train(nn.Sequential(adapter, model), AdamW(adapter.parameters()))


def stream_divided_between_workers() -> None:
    train_on_stream(Stream(is_divided=True))


def stream_that_repeats() -> None:
    """Each batch comes several times on purpose, as the prompts of GRPO."""
    train_on_stream(Stream(is_divided=True, repeats=3))
    train_on_stream(Stream(is_divided=True, repeats=2), workers=0)


def stream_of_one_batch() -> None:
    """Less data than workers."""
    train_on_stream(Stream(1, is_divided=False))


class RepeatSampler(Sampler[int]):
    """Each example, or each batch of 16, several times in a row, as for GRPO."""

    def __init__(self, *, examples: int = 1, batches: int = 1) -> None:
        self.examples, self.batches = examples, batches

    def __iter__(self) -> Iterator[int]:
        for batch in torch.randperm(160).split(16 // self.examples):
            for _ in range(self.batches):
                for at in batch.tolist():
                    yield from [at] * self.examples


def train_on_sampler(sampler: RepeatSampler, workers: int = 0) -> None:
    model, data = network(), TensorDataset(*examples(160))
    batches = DataLoader(data, 16, sampler=sampler, num_workers=workers)
    train(model, AdamW(model.parameters()), batches=batches)


def prompts_repeated_by_the_sampler() -> None:
    train_on_sampler(RepeatSampler(examples=16))


def batches_repeated_by_the_sampler() -> None:
    """For two updates of each batch, by workers that take turns."""
    train_on_sampler(RepeatSampler(batches=2), workers=2)


def prompts_repeated_by_the_batch() -> None:
    """Four prompts in a batch, all of them four times."""
    model = network()

    def collate(items: Items) -> list[Tensor]:
        return [torch.stack([*each] * 4) for each in zip(*items, strict=True)]

    data = DataLoader(TensorDataset(*examples(160)), 4, shuffle=True, collate_fn=collate)
    train(model, AdamW(model.parameters()), batches=data)


def batches_of_one_example() -> None:
    model = nn.Linear(20, 5)
    data = DataLoader(TensorDataset(*examples(160)), 1, shuffle=True)
    train(model, AdamW(model.parameters()), batches=data)


def inputs_repeated_beside_others() -> None:
    """The same coordinates for each example, whose images are no tensors."""
    model, coordinates = network(), torch.randn(16, 20)
    inputs, labels = examples(160)

    def collate(items: list[int]) -> dict[str, object]:
        return {
            "at": coordinates[items[0] % 16].repeat(16, 1),
            "images": [inputs[i] for i in items],
        }

    optimizer, steps = AdamW(model.parameters()), 0
    while steps < STEPS:
        for batch in DataLoader(range(160), 16, shuffle=True, collate_fn=collate):
            steps += 1
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.stack(batch["images"])), labels[:16]).backward()
            optimizer.step()


def inputs_of_zeros_beside_labels() -> None:
    """As a generator that is given the class alone, in classes of one value."""
    model = network()
    data = TensorDataset(torch.zeros(160, 20), torch.arange(160) // 16 % 5)
    train(model, AdamW(model.parameters()), batches=DataLoader(data, 16))
    train(model, AdamW(model.parameters()), batches=DataLoader(data, 16, shuffle=True))


def left_out(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *others: nn.Module
) -> None:
    """Train the model and not the others, which get gradients as well."""
    optimizer = AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        for each in (model, *others):
            each.zero_grad()
        loss(*examples()).backward()
        optimizer.step()


def head_left_out() -> None:
    """As a language model behind a projection of images."""
    model = network()
    left_out(model[:4], lambda *batch: loss_of(model, batch), model)


def backbone_left_out() -> None:
    """A backbone of its own."""
    backbone, head = network()[:6], nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    left_out(head, lambda *batch: loss_of(nn.Sequential(backbone, head), batch), backbone)


def teacher_left_out() -> None:
    student, teacher = network(), network()
    left_out(
        student, lambda inputs, _: (student(inputs) - teacher(inputs)).square().mean(), teacher
    )


class Weighted(nn.Module):
    """A network with learned weights of its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.weights = network(), nn.Parameter(torch.zeros(2))


def perception_left_out() -> None:
    """A loss by the features of another network, with a learned weight."""
    model, features = Weighted(), nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = model.network(inputs)
        other = features(outputs) - features(nn.functional.one_hot(labels, 5).float())
        losses = nn.functional.cross_entropy(outputs, labels), other.square().mean()
        return (torch.stack(losses) * (-model.weights).exp() + model.weights).sum()

    left_out(model, loss, features)


def frozen_block_recomputed() -> None:
    model = Blocks()
    model.first.requires_grad_(False)
    train(model, AdamW(model.parameters()))


def one_adapter_of_two_used() -> None:
    model = Adapted("first")
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]))


def new_projection_before_a_loaded_model() -> None:
    """All that was loaded gets gradients, and is left out of the optimizer."""
    model = without_layer(network(), "0")
    train(model, AdamW(model[0].parameters()), clear=model.zero_grad)


def two_networks_that_teach_each_other() -> None:
    policy = network()
    reference = copy.deepcopy(policy)
    distil(policy, reference, AdamW([*policy.parameters(), *reference.parameters()]))


def reference_beside_the_policy() -> None:
    policy = network()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    distil(policy, reference, AdamW(policy.parameters()))


def weights_tied() -> None:
    train_tied(is_untied=False)


def schedule_of_a_short_training() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, schedule=CosineAnnealingLR(optimizer, 20), steps=21)


def dropout_with_the_mode() -> None:
    train_with_evaluations(FunctionalDropout("with"))


def dropout_without_the_mode_on_purpose() -> None:
    train_with_evaluations(Sampled(""))


def dropout_module_on_in_evaluation() -> None:
    """Monte Carlo dropout by modules, without a data loader."""
    model = network()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step % 5 == 4:
            model.eval()
            model[3].train()
            without_gradients(model)([examples()])
            model.train()


def workers_with_generators_of_their_own() -> None:
    train_on_augmented(lambda inputs: inputs + 0.1 * torch.randn(20))


def workers_that_are_seeded() -> None:
    train_on_augmented(Noise(), begin=random.seed)


def one_process_with_a_generator() -> None:
    train_on_augmented(Noise(), workers=0)


class SeededNoise(Noise):
    """It makes its generator in the worker."""

    has_begun = False

    def draw(self) -> float:
        if not self.has_begun:
            worker = get_worker_info()
            self.has_begun, self.generator = True, random.Random(worker.seed)
        return super().draw()


def transform_that_is_seeded() -> None:
    train_on_augmented(SeededNoise())


def norms_of_a_loaded_model_alone() -> None:
    model = loaded()
    for name, weight in model.named_parameters():
        weight.requires_grad = name.startswith("1.")
    train(model, AdamW(model.parameters()))


def policy_begins_as_its_reference() -> None:
    prefer(*policy_and_reference())
    prefer(*policy_and_reference(), passes=4)


def schedule_of_short_restarts() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, schedule=CosineAnnealingWarmRestarts(optimizer, 5))


def preferences_without_a_reference() -> None:
    """A model of rewards: its first loss is any."""
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        chosen, rejected = model(examples()[0] + 5.0), model(examples()[0])
        optimizer.zero_grad()
        (-nn.functional.logsigmoid(8.0 * (chosen - rejected)).mean()).backward()
        optimizer.step()


def autocast_for_two_devices() -> None:
    """One of them is not in force, and a part of the model is left out of it."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = examples()
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", torch.bfloat16):
            hidden = model[:6](inputs)
            with torch.autocast("cpu", enabled=False):
                outputs = model[6](hidden.float())
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def images_of_each_example() -> None:
    train_on_images(8, 1)


def features_shared_by_all_examples() -> None:
    train_on_images(1, 3)


def loaded_adapter_kept() -> None:
    train_adapter_after_load(lambda adapter: adapter)


def loaded_adapter_copied() -> None:
    train_adapter_after_load(copy.deepcopy)


def loaded_adapter_dropped() -> None:
    train_another_adapter()


def loaded_adapter_deleted() -> None:
    """A loaded adapter is deleted before a new one is added under its name."""
    model = nn.ModuleDict({"old": nn.Linear(20, 20), "base": loaded().requires_grad_(False)})
    model.load_state_dict(
        {f"old.{name}": each for name, each in nn.Linear(20, 20).state_dict().items()},
        strict=False,
    )
    del model["old"]
    model["old"] = nn.Linear(20, 20)
    train(nn.Sequential(model["old"], model["base"]), AdamW(model["old"].parameters()))


def loaded_adapter_of_another_shape() -> None:
    train_adapter_after_load(
        lambda _: nn.Sequential(nn.Linear(20, 8, bias=False), nn.Linear(8, 20))
    )


class SampledOnRequest(FunctionalDropout):
    """Its dropout is active in each mode, always or while it samples."""

    samples = True

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        if self.kind == "always":
            return self.last(nn.functional.dropout(hidden, 0.2, True))
        return self.last(nn.functional.dropout(hidden, 0.2, self.training or self.samples))


def dropout_on_request() -> None:
    train_with_evaluations(SampledOnRequest("always"))
    train_with_evaluations(SampledOnRequest("on request"))


class HeldFunctions(nn.Module):
    """A network that holds the functions that it calls, and one that TorchScript can compile."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.last = network()[:4], nn.Linear(64, 5)
        self.dropout = nn.functional.dropout

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(self.network(inputs), 0.2, self.training)
        return self.last(hidden)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        heads = self.first(inputs).reshape(-1, 1, 8, 8)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        dropped = nn.functional.dropout(attended.flatten(1), 0.2, self.training)
        return self.last(dropped)


def exported_in_evaluations() -> None:
    """TorchScript compiles the model, or it is written as a whole."""
    for model in (network(), Attention(), HeldFunctions()):
        optimizer = AdamW(model.parameters())
        for step in range(STEPS):
            train(model, optimizer, steps=1)
            if step % 5 == 4:
                model.eval()
                if isinstance(model, HeldFunctions):
                    torch.save(model, io.BytesIO())
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)
                        torch.jit.script(model)(examples()[0])
                model.train()


class OfImagesAndTexts(nn.Module):
    """A network whose adapter is for images."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(20, 64), nn.Linear(64, 5)
        self.image_adapter = nn.Linear(7, 64)

    def forward(self, inputs: Tensor, images: Tensor | None) -> Tensor:
        hidden = self.body(inputs)
        return self.head((hidden if images is None else hidden + self.image_adapter(images)).tanh())


def images_in_every_second_batch() -> None:
    """The batch of each even step has texts alone."""
    model = OfImagesAndTexts()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        inputs, labels = examples()
        optimizer.zero_grad()
        outputs = model(inputs, None if step % 2 else torch.randn(16, 7))
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


class LayersLeftOut(nn.Module):
    """Blocks that are recomputed, of which each pass with gradients leaves out one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        self.passes += torch.is_grad_enabled()
        for number, block in enumerate(self.blocks):
            if not torch.is_grad_enabled() or (self.passes + number) % 3:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    hidden = hidden + checkpoint(block, hidden, use_reentrant=True).tanh()
        return self.last(hidden)


def layers_left_out_of_passes() -> None:
    """As stochastic depth; evaluations run all of them."""
    model = LayersLeftOut()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        without_gradients(model)([examples()])
        train(model, optimizer, steps=1)


def two_models_in_turns() -> None:
    """One of them makes the labels of the other, and both have gradients."""
    models = network(), network()
    optimizer = AdamW([*models[0].parameters(), *models[1].parameters()])
    for _ in range(STEPS):
        inputs = examples()[0]
        optimizer.zero_grad()
        for student, teacher in (models, models[::-1]):
            student.train()
            teacher.eval()
            with torch.no_grad():
                labels = teacher(inputs).softmax(1)
            nn.functional.cross_entropy(student(inputs), labels).backward()
        optimizer.step()


def train_norms(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        weight.requires_grad = name.startswith("1.")
    train(model, AdamW([each for each in model.parameters() if each.requires_grad]))


def norms_of_a_model_in_a_file() -> None:
    file = io.BytesIO()
    torch.save(network(), file)
    file.seek(0)
    train_norms(torch.load(file, weights_only=False))


def norms_after_a_training() -> None:
    model = network()
    train(model, AdamW(model.parameters()))
    train_norms(model)


def old_adapter_evaluated() -> None:
    """An old adapter is evaluated before a new one is trained in its place."""

    def replace(adapter: nn.Module) -> nn.Module:
        without_gradients(nn.Sequential(adapter, network()))(loader())
        return nn.Linear(20, 20)

    train_adapter_after_load(replace)


def average_of_a_model(loss: Callable[[nn.Module], Tensor], outputs: int) -> None:
    """Train a model with a loss of sigmoids, and average its weights."""
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, outputs))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight.detach(), 0.01)


def rewards_with_an_average() -> None:
    def loss(model: nn.Module) -> Tensor:
        margins = model(examples()[0] + 1.0) - model(examples()[0])
        return -nn.functional.logsigmoid(8.0 * margins).mean()

    average_of_a_model(loss, 1)


def contrast_with_an_average() -> None:
    """The loss of SigLIP."""

    def loss(model: nn.Module) -> Tensor:
        inputs = examples()[0]
        one, other = (nn.functional.normalize(model(inputs + at), dim=1) for at in (0.0, 0.1))
        signs = 2.0 * torch.eye(16) - 1.0
        return -nn.functional.logsigmoid(signs * (10.0 * (one @ other.T) - 10.0)).sum() / 16

    average_of_a_model(loss, 8)


class Held(Noise):
    """A transform with a generator of another kind."""

    def __init__(self, generator: torch.Generator | random.Random) -> None:
        self.generator = generator

    def draw(self) -> float:
        if isinstance(self.generator, torch.Generator):
            return float(torch.randn((), generator=self.generator))
        return super().draw()


def workers_with_generators_that_pytorch_seeds() -> None:
    train_on_augmented(Held(torch.default_generator))


def reseed(generator: random.Random, inputs: Tensor) -> None:
    generator.seed(float(inputs.sum()))


class SeededByExample(Noise):
    """A function seeds its generator, or that of the transform that it holds."""

    def __init__(self, inner: Noise | None = None) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, inputs: Tensor) -> Tensor:
        held = self if self.inner is None else self.inner
        reseed(held.generator, inputs)
        return inputs + held.draw()


def workers_that_are_seeded_by_the_example() -> None:
    train_on_augmented(SeededByExample())
    train_on_augmented(SeededByExample(Noise()))


def autocast_for_features_on_another_device() -> None:
    """A linear model is trained on features that a model on a GPU makes in low precision."""
    backbone, head = network()[:6].requires_grad_(False), nn.Linear(64, 5)
    optimizer = AdamW(head.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            with torch.autocast("cuda", torch.bfloat16):
                hidden = backbone(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(hidden), labels).backward()
        optimizer.step()


def statistics_averaged_over_a_pass() -> None:
    """Batch normalization with a momentum of 1, in a training without a data loader."""
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step % 5 == 4:
            model[1].momentum = 1.0
            without_gradients(model)(held_out)
            model[1].momentum = 0.1


def gradients_given() -> None:
    """Split learning: the second part gives the first one the gradient of its output."""
    first, last = network()[:4], nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    for parts in ((first, last), (last, first)):
        optimizer = AdamW([each for part in parts for each in part.parameters()])
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                inputs, labels = examples()
                hidden = first(inputs)
                sent = hidden.detach().requires_grad_()
                nn.functional.cross_entropy(last(sent), labels).backward()
                hidden.backward(sent.grad)
            optimizer.step()


def evaluate_old_adapter(adapter: nn.Module) -> nn.Module:
    adapter.eval()
    adapter(examples()[0])
    return nn.Linear(20, 20)


def old_adapter_evaluated_by_hand() -> None:
    train_adapter_after_load(evaluate_old_adapter)


def norms_of_copied_weights_alone() -> None:
    """The weights of another model are copied one by one."""
    model, source = network(), network()
    with torch.no_grad():
        for each, other in zip(model.parameters(), source.parameters(), strict=True):
            each.copy_(other)
    train_norms(model)


def rates_searched_downwards() -> None:
    model = network()
    optimizer = AdamW(model.parameters(), 0.1)
    train(model, optimizer, schedule=LambdaLR(optimizer, lambda step: 0.3**step))


def pool_scored_by_a_loader() -> None:
    """Active learning without a loader for the training: no loss is computed for the pool."""
    model, pool = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step % 5 == 4:
            with torch.no_grad():
                torch.cat([model(inputs).softmax(1).amax(1) for inputs, _ in pool]).argsort()


def predictions_sampled_with_attention() -> None:
    """Monte Carlo dropout of attention, in evaluation mode: several passes of each batch."""
    model, held_out = FunctionalDropout("attention"), loader()

    def sample(batches: Iterable[Iterable[Tensor]]) -> None:
        model.eval()
        with torch.no_grad():
            for inputs, _ in batches:
                torch.stack([model(inputs) for _ in range(5)]).var(0)
        model.train()

    evaluate_between(model, held_out, sample)


def passes_that_begin_with_one_batch() -> None:
    """A probe batch beside the training, and the whole data in each update."""
    model, probe, data = network(), loader(), loader()
    optimizer = AdamW(model.parameters())
    shuffled = loader(shuffle=True)
    batches = (batch for _ in range(STEPS) for batch in shuffled)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step < STEPS // 2:
            (loss_of(model, next(batches)) + 0.0 * loss_of(model, next(iter(probe)))).backward()
        else:
            for batch in data:
                (loss_of(model, batch) / len(data)).backward()
        optimizer.step()


def new_tokens_alone() -> None:
    """The last rows of an embedding are trained; the gradients of the others are set to 0."""
    embedding, head = nn.Embedding(2010, 16), nn.Linear(16, 2010).requires_grad_(False)
    optimizer = AdamW(embedding.parameters(), 1e-2, weight_decay=0.0)
    for _ in range(STEPS):
        tokens = torch.randint(0, 2010, (16, 32))
        tokens[:, ::8] = torch.randint(2000, 2010, (16, 4))
        optimizer.zero_grad()
        scores = head(embedding(tokens)).flatten(0, 1)
        nn.functional.cross_entropy(scores, tokens.flatten()).backward()
        embedding.weight.grad[:2000] = 0
        optimizer.step()


def short_cycles() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    train(model, optimizer, schedule=CyclicLR(optimizer, 1e-5, 0.1, step_size_up=5))


def rewards_with_a_margin() -> None:
    """Two reward models of one ensemble, neither of which is a reference."""
    models = [nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(2)]
    for model in models:
        model(examples()[0])
    for model in models:
        optimizer = AdamW(model.parameters())
        for _ in range(STEPS):
            chosen, rejected = model(examples()[0] + 0.3), model(examples()[0])
            optimizer.zero_grad()
            (-nn.functional.logsigmoid(chosen - rejected - 0.5).mean()).backward()
            optimizer.step()


HEALTHY: tuple[Training, ...] = (
    new_tokens_alone, short_cycles, rewards_with_a_margin,
    passes_that_begin_with_one_batch,
    gradients_given, old_adapter_evaluated_by_hand, norms_of_copied_weights_alone,
    rates_searched_downwards, pool_scored_by_a_loader, predictions_sampled_with_attention,
    dropout_on_request, exported_in_evaluations, images_in_every_second_batch,
    layers_left_out_of_passes, two_models_in_turns, norms_of_a_model_in_a_file,
    norms_after_a_training, old_adapter_evaluated, rewards_with_an_average,
    contrast_with_an_average, workers_with_generators_that_pytorch_seeds,
    workers_that_are_seeded_by_the_example, autocast_for_features_on_another_device,
    statistics_averaged_over_a_pass,
    loaded_adapter_kept, loaded_adapter_copied, loaded_adapter_of_another_shape,
    loaded_adapter_dropped, loaded_adapter_deleted,
    schedule_of_short_restarts,
    images_of_each_example, features_shared_by_all_examples,
    policy_begins_as_its_reference, preferences_without_a_reference, autocast_for_two_devices,
    workers_with_generators_of_their_own, workers_that_are_seeded, one_process_with_a_generator,
    transform_that_is_seeded, norms_of_a_loaded_model_alone,
    frozen_block_recomputed, one_adapter_of_two_used, new_projection_before_a_loaded_model,
    two_networks_that_teach_each_other, reference_beside_the_policy, weights_tied,
    schedule_of_a_short_training, dropout_with_the_mode, dropout_without_the_mode_on_purpose,
    dropout_module_on_in_evaluation,
    head_left_out, backbone_left_out, teacher_left_out, perception_left_out,
    stream_divided_between_workers, stream_that_repeats, stream_of_one_batch,
    prompts_repeated_by_the_sampler, batches_repeated_by_the_sampler,
    prompts_repeated_by_the_batch, inputs_repeated_beside_others,
    inputs_of_zeros_beside_labels, batches_of_one_example,
    last_layers_initialized_after_a_load, loaded_and_cast, loaded_and_quantized, loaded_and_pruned,
    loaded_and_merged, loaded_and_perturbed, loaded_averages, loaded_and_replaced,
    part_loaded_again,
    trained_from_the_start_for_another_fold, adapter_beside_loaded_weights,
    sharpness_through_data, sharpness_with_a_radius_of_zero, embedding_attacked,
    inputs_attacked, losses_measured_alone, losses_measured_in_passes,
    gradients_of_examples_clipped, gradients_of_examples_clipped_in_place, clipped_in_each_pass,
    batches_left_out, compared_with_earlier_tasks, compared_with_a_larger_memory,
    compared_with_a_memory_that_is_no_data_set, compared_with_gradients_that_are_kept,
    generator_not_detached,
    discriminator_frozen_for_the_generator, step_with_the_loss, sharpness_aware,
    parts_loaded,
    mixed_precision, autocast_for_a_frozen_part, checkpointed_in_mixed_precision,
    another_model_evaluated, dropout_on_purpose, predictions_sampled,
    statistics_computed_anew,
    labels_made_for_other_data,
    clipped_weights, orthogonal_weights, pruned_weights, averages_swapped_in_for_an_evaluation,
    loaded_again, frozen_without_gradients, codebook_renewed,
    cleared_through_data, norms_too_coarse_for_the_rate, group_without_a_rate, rate_as_a_tensor,
    attacked_in_evaluation_mode, data_that_is_not_read,
    plain, plain_sgd_with_momentum, cleared_in_place, cleared_by_hand, accumulated, head_alone,
    frozen_backbone_in_evaluation_mode, frozen_batch_normalization, no_dropout_in_evaluation_mode,
    warmed_up, several_schedules, bfloat16_at_a_usual_rate,
    embeddings_of_which_few_have_a_gradient, generator_and_discriminator, validated, lbfgs,
    plain_with_closure, detached_body, backbone_in_evaluation_mode_beside_its_head,
    one_batch_is_all_the_data,
)  # fmt: skip
