"""Small Lightning modules that store reference values, and the names that patches replace."""

import sys

import lightning.pytorch as L
import torch
from support.training_loops import norm


class Net(L.LightningModule):
    """One linear layer; stores the reference values of a test."""

    def __init__(self, lr=0.1, **logged):
        super().__init__()
        self.save_hyperparameters("lr")
        self.layer = torch.nn.Linear(4, 1)
        self.logged = logged
        self.losses, self.norms = [], []

    def training_step(self, batch, at):
        loss = (self.layer(batch) ** 2).mean()
        self.losses.append(float(loss))
        self.log("train_loss", loss, **self.logged)
        self.log("kl", 0.25 * at)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.norms.append(norm(self.parameters()))

    def validation_step(self, batch, at):
        self.log("val_loss", (self.layer(batch) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Two(L.LightningModule):
    """Manual optimization, with a large optimizer and a small one."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.large, self.small = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.losses = []

    def training_step(self, batch, at):
        large, small = self.optimizers()
        for optimizer, part in ((large, self.large), (small, self.small)):
            loss = (part(batch) ** 2).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            if part is self.large:
                self.losses.append(float(loss))
        self.log("reward", float(at))

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.large.parameters(), lr=0.1),
            torch.optim.SGD(self.small.parameters(), lr=0.2),
        ]


def data(count=32, size=4):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(count, 4, generator=generator)
    return torch.utils.data.DataLoader(rows, batch_size=size)


def trainer(tmp_path, **settings):
    quiet_settings = {"logger": False, "enable_checkpointing": False}
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **{**quiet_settings, **settings},
    )


def net(**logged):
    torch.manual_seed(0)
    return Net(**logged)


def patched():
    """Current values of all patched names."""
    logs = "lightning.pytorch.trainer.connectors.logger_connector"
    owners = (
        (sys.modules[f"{logs}.result"]._ResultCollection, ("update_metrics", "metrics")),
        (
            sys.modules[f"{logs}.logger_connector"]._LoggerConnector,
            ("on_batch_end", "on_epoch_end", "log_metrics"),
        ),
        (sys.modules["lightning.pytorch.trainer.call"], ("_call_callback_hooks",)),
        (L.Trainer, ("save_checkpoint",)),
        (sys.modules["lightning.pytorch.loops.evaluation_loop"]._EvaluationLoop, ("run",)),
        (sys.modules["lightning.pytorch.loops.prediction_loop"]._PredictionLoop, ("run",)),
        (L.callbacks.LearningRateFinder, ("lr_find",)),
        (L.callbacks.BatchSizeFinder, ("scale_batch_size",)),
        (torch.Tensor, ("backward",)),
    )
    return [vars(owner)[name] for owner, names in owners for name in names]
