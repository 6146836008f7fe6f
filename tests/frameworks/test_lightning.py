"""The installed Lightning: recorded values, special cases, and no remaining patches."""

import copy
import random

import pytest
from requirements import need

need("lightning", "torch")

import lightning.pytorch as L
import numpy as np
import torch
from lightning_modules import Net, Two, data, net, patched, trainer
from support.fake_device import pretended_device
from support.training_loops import column, steps

import sentinel
from sentinel.model.record import CHECK_KEY, PROBLEM_KEY, Event

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


def test_every_step_has_lightnings_number_and_correct_values(tmp_path, recorded, reported_metadata):
    model, fit = net(), trainer(tmp_path, max_steps=6, gradient_clip_val=0.01)
    before = patched()
    with watched:
        assert all(now is not then for now, then in zip(patched(), before, strict=True))
        fit.fit(model, data())
    assert all(now is then for now, then in zip(patched(), before, strict=True))

    assert [r.step for r in steps(recorded)] == [1, 2, 3, 4, 5, 6]
    assert column(recorded, "global_step") == [1, 2, 3, 4, 5, 6]
    assert column(recorded, "loss") == pytest.approx(model.losses)
    assert column(recorded, "grad_norm") == pytest.approx(model.norms, rel=1e-5)
    assert min(model.norms) > 0.01
    assert column(recorded, "learning_rate") == [0.1] * 6
    assert column(recorded, "kl") == [0.25 * at for at in range(6)]
    assert column(recorded, "logged_loss") == pytest.approx(model.losses)
    known = reported_metadata()[0]
    assert known["patch/lightning"] == "on"
    assert (known["framework"], known["model"], known["optimization"]) == (
        "lightning",
        "Net",
        "automatic",
    )
    assert (known["max_steps"], known["lr"], known["learning_rate"]) == (6, 0.1, 0.1)
    assert known["framework_version"] == L.__version__


@pytest.mark.parametrize("is_copied", [False, True])
def test_weights_that_no_step_changes_are_reported(tmp_path, recorded, is_copied):
    model, fit = net(), trainer(tmp_path, max_steps=20)
    if is_copied:
        copied = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
        model.configure_optimizers = lambda: copied
    with watched:
        fit.fit(model, data(count=80))

    checks = [r.attributes for r in recorded()[0] if r.event is Event.CHECK]
    problems = {each[PROBLEM_KEY] for each in checks if each[CHECK_KEY] == "weights"}
    assert problems == ({"other_tensors"} if is_copied else {""})


@pytest.mark.parametrize("is_callback", [False, True])
def test_a_search_for_the_rate_is_no_part_of_the_training(tmp_path, recorded, is_callback):
    model = net()
    if is_callback:
        search = L.callbacks.LearningRateFinder(min_lr=0.1, max_lr=1e6, attr_name="lr")
        fit = trainer(tmp_path, max_steps=6, callbacks=[search])
    else:
        fit = trainer(tmp_path, max_steps=6)
    with watched:
        if not is_callback:
            L.tuner.Tuner(fit).lr_find(model, data(), min_lr=0.1, max_lr=1e6, attr_name="lr")
        fit.fit(model, data())

    tried, trained = model.losses[:-6], model.losses[-6:]
    assert max(tried) > 100 * tried[0]
    assert [r.step for r in steps(recorded)] == [1, 2, 3, 4, 5, 6]
    assert column(recorded, "loss") == pytest.approx(trained)
    assert not [r for r in recorded()[0] if r.event is Event.SAVE]


def test_accumulated_batches_are_one_step_whose_loss_is_their_mean(tmp_path, recorded):
    model, fit = net(), trainer(tmp_path, max_steps=3, accumulate_grad_batches=2)
    with watched:
        fit.fit(model, data())

    means = [sum(model.losses[at : at + 2]) / 2 for at in (0, 2, 4)]
    assert [r.step for r in steps(recorded)] == [1, 2, 3]
    assert column(recorded, "loss") == pytest.approx(means)
    assert column(recorded, "kl") == [0.25, 0.75, 1.25]


def test_manual_optimizers_are_numbered_as_lightning_counts(tmp_path, recorded, reported_metadata):
    torch.manual_seed(0)
    model, fit = Two(), trainer(tmp_path, max_steps=8)
    with watched:
        fit.fit(model, data())

    assert column(recorded, "global_step") == [2, 4, 6, 8]
    assert column(recorded, "optimizer_steps") == [1, 2, 3, 4]
    assert column(recorded, "loss") == pytest.approx(model.losses)
    assert column(recorded, "reward") == [0, 1, 2, 3]
    assert reported_metadata()[0]["optimization"] == "manual"
    assert reported_metadata()[0]["optimizers"] == "SGD,SGD"


def test_an_evaluation_is_a_phase_and_the_sanity_check_is_not(tmp_path, recorded):
    model = net()
    fit = trainer(tmp_path, max_epochs=2, limit_train_batches=3, num_sanity_val_steps=2)
    expected = []
    step = model.validation_step

    def kept(batch, batch_idx):
        expected.append(float((model.layer(batch) ** 2).mean()))
        step(batch, batch_idx)

    model.validation_step = kept
    with watched:
        fit.fit(model, data(), data(8))

    records = recorded()[0]
    found = [(r.step, r.values["val_loss"]) for r in records if r.event is Event.EVAL]
    # Two batches a time; the first two are those of the check.
    means = [sum(expected[at : at + 2]) / 2 for at in (2, 4)]
    assert found == [(3, pytest.approx(means[0])), (6, pytest.approx(means[1]))]
    edges = [
        (r.attributes["name"], r.attributes["edge"]) for r in records if r.event is Event.PHASE
    ]
    assert edges == [("eval", "begin"), ("eval", "end")] * 3


def test_epoch_metrics_are_recorded_once_per_epoch(tmp_path, recorded):
    model = net(on_step=True, on_epoch=True)
    fit = trainer(tmp_path, max_epochs=2, limit_train_batches=4)
    with watched:
        fit.fit(model, data(16))

    means = [sum(model.losses[at : at + 4]) / 4 for at in (0, 4)]
    assert column(recorded, "train_loss_epoch") == pytest.approx(means)
    assert column(recorded, "logged_loss") == pytest.approx(model.losses)


def test_occasional_metrics_are_not_repeated(tmp_path, recorded):
    model, fit = net(), trainer(tmp_path, max_steps=6)
    step = model.training_step

    def log_seldom(batch, batch_idx):
        if batch_idx % 3 == 0:
            model.log("reward", float(batch_idx))
        return step(batch, batch_idx)

    model.training_step = log_seldom
    with watched:
        fit.fit(model, data())

    assert column(recorded, "reward") == [0, 3]


def test_checkpoints_are_recorded_with_step_and_path(tmp_path, recorded, reported_metadata):
    from lightning.pytorch.callbacks import ModelCheckpoint

    saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit = trainer(tmp_path, max_steps=5, callbacks=[saves], enable_checkpointing=True)
    with watched:
        fit.fit(net(), data())
        fit.save_checkpoint(tmp_path / "mine.ckpt")

    found = [(r.step, r.attributes["path"]) for r in recorded()[0] if r.event is Event.SAVE]
    names = ["step=2.ckpt", "step=4.ckpt", "mine.ckpt"]
    assert found == [(n, str(tmp_path / name)) for n, name in zip((2, 4, 5), names, strict=True)]
    assert reported_metadata()[0]["save_steps"] == 2


def test_a_resumed_run_continues_at_lightnings_step(tmp_path, recorded, reported_metadata):
    fit = trainer(tmp_path, max_steps=3)
    fit.fit(net(), data())
    fit.save_checkpoint(tmp_path / "at.ckpt")
    again = trainer(tmp_path, max_steps=5)
    with watched:
        again.fit(net(), data(), ckpt_path=tmp_path / "at.ckpt")

    assert column(recorded, "global_step") == [4, 5]
    assert reported_metadata()[0]["resumed_from"] == 3


def test_a_nan_is_recorded_at_its_step(tmp_path, recorded):
    rows = torch.randn(16, 4)
    rows[9] = float("nan")
    fit = trainer(tmp_path, max_steps=4)
    with watched:
        fit.fit(net(), torch.utils.data.DataLoader(rows, batch_size=4))

    bad = [r.step for r in steps(recorded) if r.values["loss"] != r.values["loss"]]
    assert bad == [3, 4]


def test_training_is_bit_identical_with_and_without_monitoring(tmp_path):
    def train():
        L.seed_everything(3)
        model, fit = Net(), trainer(tmp_path, max_steps=6, gradient_clip_val=0.5)
        fit.fit(model, torch.utils.data.DataLoader(torch.randn(32, 4), 4, shuffle=True), data(8))
        state = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
        return model.losses, state, random.getstate(), model.layer.weight.tolist()

    without = train()
    with watched:
        within = train()

    assert within == without


def test_logger_values_are_recorded_once_and_user_logs_too(tmp_path, recorded):
    from lightning.pytorch.loggers import TensorBoardLogger

    model = net()
    step = model.training_step

    def logging_step(batch, batch_idx):
        model.logger.experiment.add_scalar("mine", batch_idx, batch_idx)
        return step(batch, batch_idx)

    model.training_step = logging_step
    logger = TensorBoardLogger(tmp_path)
    fit = trainer(tmp_path, max_steps=4, logger=logger, log_every_n_steps=1)
    with watched:
        fit.fit(model, data())

    assert column(recorded, "kl") == [0.0, 0.25, 0.5, 0.75]
    assert column(recorded, "logged_loss") == pytest.approx(model.losses)
    assert column(recorded, "mine") == [0, 1, 2, 3]
    # Only Lightning numbers the steps.
    assert column(recorded, "global_step") == [1, 2, 3, 4]


def test_a_fit_after_a_failed_one_starts_over(tmp_path, recorded):
    """As in cross-validation, where the trainers and optimizers of all folds stay alive."""

    class Large(Net):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 64)

        def on_after_backward(self):
            if self.global_step == 2:
                raise RuntimeError

    first, second = Large(), net()
    fits = [trainer(tmp_path, max_steps=3, accumulate_grad_batches=2) for _ in range(2)]
    with watched:
        with pytest.raises(RuntimeError):
            fits[0].fit(first, data())
        fits[1].fit(second, data())

    losses = [*first.losses[:4], *second.losses]
    means = [sum(losses[at : at + 2]) / 2 for at in range(0, 10, 2)]
    assert [r.step for r in steps(recorded) if "loss" in r.values] == [1, 2, 1, 2, 3]
    assert column(recorded, "loss") == pytest.approx(means)


def test_an_evaluation_on_a_device_is_not_a_step(tmp_path, recorded):
    fit = trainer(tmp_path, max_epochs=2, limit_train_batches=3, num_sanity_val_steps=0)
    with pretended_device(), watched:
        fit.fit(net(), data(), data(8))

    found = [(r.event, r.step) for r in recorded()[0] if "val_loss" in r.values]
    assert found == [(Event.EVAL, 3), (Event.EVAL, 6)]
