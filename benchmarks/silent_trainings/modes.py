"""The mode of the model, precision, and the schedule of the learning rate."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR, StepLR

from silent_trainings.case import case
from silent_trainings.loops import (
    STEPS,
    endless,
    evaluate,
    examples,
    loader,
    loss_of,
    network,
    train,
    update,
)

GITHUB = "https://github.com/"


@case(GITHUB + "wkentaro/pytorch-fcn/pull/56", "evaluation_mode/evaluation_mode", begins=8)
def evaluation_mode_after_a_validation(*, sick: bool) -> None:
    """A validation within an epoch leaves the model in evaluation mode."""
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        if step == 7:
            model.eval()
            evaluate(model, held_out)
            model.train(not sick)


@case(GITHUB + "huggingface/peft/pull/3636", "evaluation_mode/evaluation_mode", begins=5)
def evaluation_mode_after_a_generation(*, sick: bool) -> None:
    """A generation leaves the base model in evaluation mode, and its wrapper in training mode."""
    base = network()
    model = nn.Sequential(base)
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        if step == 4:
            base.eval()
            evaluate(model, [examples()])
            base.train(not sick)


@case(
    GITHUB + "princeton-vl/pytorch_stacked_hourglass/issues/44",
    "evaluation_in_training_mode",
    begins=9,
)
def validated_in_training_mode(*, sick: bool) -> None:
    """Each validation is in training mode, and changes the statistics of batch normalization."""
    model, held_out = network(), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        if step % 10 == 9:
            model.train(sick)
            evaluate(model, held_out)
            model.train()


class FunctionalDropout(nn.Module):
    """A network whose dropout is a function, which has to be given the mode."""

    def __init__(self, *, has_mode: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)
        self.has_mode = has_mode

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        mode = {"training": self.training} if self.has_mode else {}
        return self.last(functional.dropout(hidden, 0.2, **mode))


@case(GITHUB + "rixwew/pytorch-fm/issues/21", "evaluation_in_training_mode", begins=9)
def functional_dropout(*, sick: bool) -> None:
    """`functional.dropout` is not given the mode, and is active in each validation."""
    model, held_out = FunctionalDropout(has_mode=not sick), loader()
    optimizer = AdamW(model.parameters())
    for step in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        if step % 10 == 9:
            model.eval()
            evaluate(model, held_out)
            model.train()


@case(GITHUB + "huggingface/lerobot/pull/4537", "autocast_not_in_force")
def autocast_of_another_device(*, sick: bool) -> None:
    """Autocast is asked for a device that computes nothing: all is in float32."""
    model = network()
    optimizer = AdamW(model.parameters())
    # On a machine without CUDA, PyTorch warns once.
    warnings.simplefilter("ignore")
    for _ in range(STEPS):
        inputs, labels = examples()
        with torch.autocast("cuda" if sick else "cpu", torch.bfloat16):
            outputs = model(inputs)
        update(optimizer, functional.cross_entropy(outputs.float(), labels))


@case(GITHUB + "pytorch/pytorch/issues/67590", "steps_skipped")
def scaler_that_skips(*, sick: bool) -> None:
    """The gradients overflow at each step, and the scaler skips all of them."""
    model = network()
    optimizer = AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    factor = float("inf") if sick else 1.0
    model[-1].weight.register_hook(lambda gradient: gradient * factor)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, examples())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@case(GITHUB + "leftthomas/SRGAN/issues/94", "schedule_too_fast/spent")
def schedule_of_epochs_by_step(*, sick: bool) -> None:
    """A schedule that counts epochs takes a step for each batch: the rate is soon 0."""
    model, data = network(), loader(shuffle=True)
    optimizer = AdamW(model.parameters())
    schedule = StepLR(optimizer, 2, 0.1)
    for step, batch in enumerate(endless(data)):
        update(optimizer, loss_of(model, batch))
        if sick or step % 40 == 39:
            schedule.step()


@case(GITHUB + "determined-ai/determined/pull/711", "schedule_too_fast/spent")
def schedule_too_short(*, sick: bool) -> None:
    """A schedule of fewer steps than the training: the rate is 0 for most of it."""
    model = network()
    optimizer = AdamW(model.parameters())
    total = 12 if sick else STEPS
    schedule = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    train(model, optimizer, schedule=schedule)
