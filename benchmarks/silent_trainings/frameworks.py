"""Errors within Accelerate and Lightning, which are imported by the trainings alone."""

from __future__ import annotations

import warnings

from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from silent_trainings.case import case
from silent_trainings.loops import STEPS, examples, loader, loss_of, network

GITHUB = "https://github.com/"


@case(GITHUB + "starVLA/starVLA/pull/210", "schedule_too_fast/once_a_pass")
def schedule_by_micro_batch(*, sick: bool) -> None:
    """With Accelerate the schedule takes a step for each micro-batch of gradient accumulation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = network()
    optimizer = AdamW(model.parameters())
    schedule = LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 1000))
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(4 * STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, examples()))
            optimizer.step()
            if sick or accelerator.sync_gradients:
                schedule.step()
            optimizer.zero_grad()


@case(
    GITHUB + "Lightning-AI/pytorch-lightning/issues/20986",
    "evaluation_mode/evaluation_mode",
)
def fitted_in_evaluation_mode(*, sick: bool) -> None:
    """Lightning leaves a model that is given in evaluation mode in it."""
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return loss_of(self.network, batch)

        def configure_optimizers(self):
            return AdamW(self.parameters())

    trainer = pl.Trainer(
        accelerator="cpu", max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module()
    module.train(not sick)
    trainer.fit(module, loader(shuffle=True))
