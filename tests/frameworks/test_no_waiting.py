"""No integration waits for a device: it adds no operation that reads a value.

Frameworks read values by themselves, to log them: the same loop runs without and with
sentinel, and the additional operations are those of sentinel.
"""

import contextlib
from importlib.util import find_spec

import pytest
import torch
from support.fake_device import added_operations, waiting_operations
from support.training_loops import batch, loss_of, model

import sentinel

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


def lacking(*packages):
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def by_accelerate(folder):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader([batch(n)[0] for n in range(16)], batch_size=4)
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    for x in data:
        with accelerator.accumulate(net):
            loss = loss_of(net, x)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss, "kl": loss.detach() * 2}, step=1)
    AcceleratorState._reset_state(reset_partial_state=True)


def by_transformers(folder):
    import tiny_models
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    tokens = tiny_models.tokenizer()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_list(tiny_models.rows(tokens))
    Trainer(model=tiny_models.llama(tokens), args=arguments, train_dataset=data).train()


def by_lightning(folder):
    import lightning.pytorch as L

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, x, at):
            loss = (self.layer(x) ** 2).mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader([batch(n)[0] for n in range(8)], batch_size=4)
    L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(Net(), data)


def by_tensorboard(folder):
    from torch.utils.tensorboard import SummaryWriter

    with contextlib.closing(SummaryWriter(folder)) as writer:
        for step in range(3):
            writer.add_scalar("kl", torch.tensor(0.5), step)
            writer.add_scalars("reward", {"one": torch.tensor(0.5)}, step)


def by_wandb(folder):
    import wandb

    with wandb.init(dir=folder, mode="offline", settings={"console": "off"}) as run:
        for step in range(3):
            run.log({"kl": torch.tensor(0.5), "loss": 0.5}, step=step)


LOOPS = [
    pytest.param(by_accelerate, marks=lacking("accelerate")),
    pytest.param(by_transformers, marks=lacking("transformers", "accelerate", "datasets")),
    pytest.param(by_lightning, marks=lacking("lightning")),
    pytest.param(by_tensorboard, marks=lacking("tensorboard")),
    pytest.param(by_wandb, marks=lacking("wandb")),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_no_integration_waits_for_a_device(loop, tmp_path, recorded):
    found = added_operations(lambda: loop(tmp_path), watched)

    assert waiting_operations(found) == {}
    assert any("kl" in r.values or "loss" in r.values for r in recorded()[0])
