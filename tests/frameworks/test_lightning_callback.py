"""The Lightning callback, its entry points, and several ranks."""

import json
from pathlib import Path

import pytest
from requirements import need

need("lightning", "torch")

from lightning_modules import data, net, patched, trainer
from support.training_loops import column

import sentinel
from sentinel.client import auto_session, session
from sentinel.integrations.callbacks import lightning as callbacks
from sentinel.model.record import Event

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


def test_a_callback_monitors_from_the_start_of_fit_to_its_end(tmp_path, recorded, monkeypatch):
    model = net()
    ours = callbacks.LightningCallback(run="test", agent=False, strict=True)
    fit = trainer(tmp_path, max_steps=4, callbacks=[ours])
    before = patched()
    fit.fit(model, data())

    assert session.current_session() is None
    assert all(now is then for now, then in zip(patched(), before, strict=True))
    assert column(recorded, "loss") == pytest.approx(model.losses)
    assert column(recorded, "global_step") == [1, 2, 3, 4]
    assert recorded()[0][-1].attributes["outcome"] == "finished"


def test_a_callback_records_how_fit_ended(tmp_path, recorded):
    model = net()

    def broken(batch, batch_idx):
        raise ZeroDivisionError

    model.training_step = broken
    ours = callbacks.LightningCallback(run="test", agent=False, strict=True)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, max_steps=4, callbacks=[ours]).fit(model, data())

    assert recorded()[0][-1].attributes["exception"] == "ZeroDivisionError"


def test_a_callback_within_a_decorated_function_adds_nothing(tmp_path, recorded):
    ours = callbacks.LightningCallback(run="other")
    with watched:
        trainer(tmp_path, max_steps=3, callbacks=[ours]).fit(net(), data())
        assert session.current_session() is not None

    assert column(recorded, "global_step") == [1, 2, 3]


def test_the_entry_point_adds_a_callback_only_if_a_run_is_named(monkeypatch):
    assert callbacks.create_callbacks() == []
    monkeypatch.setenv("SENTINEL_RUN_ID", "named")
    assert [type(each) for each in callbacks.create_callbacks()] == [callbacks.LightningCallback]
    with watched:
        assert callbacks.create_callbacks() == []
    assert not auto_session._AutoSession.active


def test_the_package_of_the_older_name_is_monitored(tmp_path, recorded, reported_metadata):
    import pytorch_lightning as older
    import torch

    class Older(older.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.losses = torch.nn.Linear(4, 1), []

        def training_step(self, batch, batch_idx):
            loss = (self.layer(batch) ** 2).mean()
            self.losses.append(float(loss))
            self.log("reward", 0.5 * batch_idx)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Older()
    fit = older.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    with watched:
        fit.fit(model, data())

    assert column(recorded, "global_step") == [1, 2, 3]
    assert column(recorded, "loss") == pytest.approx(model.losses)
    assert column(recorded, "reward") == [0.0, 0.5, 1.0]
    assert reported_metadata()[0]["patch/pytorch_lightning"] == "on"


RANKS = """
import warnings

warnings.filterwarnings("ignore")

import lightning.pytorch as L
import torch

import sentinel


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch) ** 2).mean()
        self.losses.append(float(loss.detach()))
        self.log("reward", loss * 0 + self.global_rank)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@sentinel.monitor(run="test", agent=False, strict=True)
def train():
    L.seed_everything(0)
    net = Net()
    rows = torch.randn(32, 4)
    fit = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=4, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    fit.fit(net, torch.utils.data.DataLoader(rows, 4))
    # In one write: two ranks share the pipe.
    print("\\nLOSSES %d %s\\n" % (fit.global_rank, net.losses), end="", flush=True)


train()
"""


def test_each_of_two_ranks_records_its_loss_and_logs(run_ranks, recorded, reported_metadata):
    printed = run_ranks(RANKS, frameworks=("lightning.pytorch",))

    records = recorded()
    assert sorted(records) == [0, 1]
    for rank in (0, 1):
        line = next(x for x in printed.splitlines() if x.startswith(f"LOSSES {rank} "))
        losses = json.loads(line.split(" ", 2)[2])
        steps = [r for r in records[rank] if r.event is Event.STEP]
        assert [r.step for r in steps] == [1, 2, 3, 4]
        assert [r.values["loss"] for r in steps] == pytest.approx(losses)
        assert [r.values["reward"] for r in steps] == [rank] * 4
    assert reported_metadata()[0]["strategy"] == "DDPStrategy"


def test_the_entry_points_name_existing_functions():
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for package in ("lightning.pytorch", "pytorch_lightning"):
        table = f'[project.entry-points."{package}.callbacks_factory"]'
        assert f'{table}\nsentinel = "{callbacks.__name__}:create_callbacks"\n' in declared
