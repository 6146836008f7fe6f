"""Small trainings with one error that no curve shows at once, and healthy ones beside them.

Each is a function that trains for about 30 steps and logs nothing. `SILENT` has the detector that
names its error; the errors are those of public threads, each written anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

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


def data_set_that_ignores_the_index() -> None:
    model = network()
    train(model, AdamW(model.parameters()), batches=DataLoader(OneItem(), 16, shuffle=True))


SILENT: dict[Training, str] = {
    gradients_never_cleared: "gradients_not_cleared",
    gradients_of_another_model_cleared: "gradients_not_cleared",
    optimizer_of_a_copy: "weights_not_updated",
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


def one_batch_is_all_the_data() -> None:
    model = network()
    data = DataLoader(TensorDataset(*examples(16)), batch_size=16)
    train(model, AdamW(model.parameters()), batches=data)


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


HEALTHY: tuple[Training, ...] = (
    cleared_through_data, norms_too_coarse_for_the_rate, group_without_a_rate, rate_as_a_tensor,
    attacked_in_evaluation_mode, data_that_is_not_read,
    plain, plain_sgd_with_momentum, cleared_in_place, cleared_by_hand, accumulated, head_alone,
    frozen_backbone_in_evaluation_mode, frozen_batch_normalization, no_dropout_in_evaluation_mode,
    warmed_up, several_schedules, bfloat16_at_a_usual_rate,
    embeddings_of_which_few_have_a_gradient, generator_and_discriminator, validated, lbfgs,
    one_batch_is_all_the_data,
)  # fmt: skip
