"""Installed trackers: values that a manual loop logs are recorded once."""

import math
import random

import pytest
from requirements import need

need("torch", "wandb", "trackio", "tensorboard", "tensorboardX", "mlflow", "transformers")

import psutil
import torch
from manual_loop import numbered_column, train
from support.training_loops import steps

import sentinel
from sentinel.signals.tracker_runs import tracker_runs

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Keep all files in the test's directory, and end all processes with the test."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "WANDB_DISABLE_CODE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "TRACKIO_AUTO_LOG_GPU": "0",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(name, value)


class Untouchable:
    """An image or a table, whose attributes must not be accessed."""

    def __getattr__(self, name):
        raise AssertionError(name)

    __float__ = __len__ = __iter__ = __bool__ = __index__ = None


def assert_values_are_recorded(read_records, losses):
    """Steps are the optimizer's, since one value does not show what its step counts."""
    assert numbered_column(read_records, "loss") == [
        (r.step, x) for r, x in zip(steps(read_records), losses, strict=True)
    ]
    assert [value for _, value in numbered_column(read_records, "kl")] == [0.0, 0.125, 0.25, 0.375]
    assert [value for _, value in numbered_column(read_records, "reward")] == [0, -1, -2, -3]
    assert [value for _, value in numbered_column(read_records, "logged_loss")] == losses


@pytest.fixture
def tracker_run(reported_metadata):
    """Returns a function: what the run reported about its runs at trackers."""
    return lambda: tracker_runs(reported_metadata()[0])


def test_wandb_is_captured_by_module_or_run_created_before_or_within(recorded, tracker_run):
    import wandb
    from wandb.sdk.wandb_run import Run

    before, children = vars(Run)["_log"], psutil.Process().children(recursive=True)
    early = wandb.init(project="p")
    bound = wandb.log
    with watched:
        assert vars(Run)["_log"] is not before

        def log(values, step):
            (early.log if step % 2 else bound)(values)

        losses = train(log)
    assert vars(Run)["_log"] is before
    assert wandb.log is bound
    early.finish()
    wandb.teardown()
    assert tracker_run()["wandb_run"].endswith(f"p/{early.id}")
    assert tracker_run()["wandb_url"].startswith("https://")
    assert tracker_run()["wandb_offline"] == "yes"

    assert_values_are_recorded(recorded, losses)
    assert [r.step for r in steps(recorded)] == [1, 2, 3, 4]
    left = set(psutil.Process().children(recursive=True)) - set(children)
    assert not psutil.wait_procs(left, timeout=240)[1]


def test_nested_wandb_keys_are_joined_and_other_values_are_ignored(recorded, headers):
    from wandb.sdk.wandb_run import Run

    run = Run.__new__(Run)
    with watched:
        original = vars(Run)["_partial_history_callback"]
        Run._partial_history_callback = lambda *_: None
        run._local_step = 0
        try:
            run._log(
                {
                    "actor": {"ppo": {"kl": 0.5}, "name": "text"},
                    "table": Untouchable(),
                    "sharp": True,
                    "tensor": torch.tensor(2.5),
                    "many": torch.ones(3),
                }
            )
        finally:
            Run._partial_history_callback = original

    assert [dict(r.values) for r in steps(recorded)] == [{"actor.ppo.kl": 0.5, "tensor": 2.5}]
    assert not any(headers()[0].drop_counts)


@pytest.mark.parametrize("package", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard_key_by_key(recorded, tracker_run, tmp_path, package):
    import importlib

    writers = importlib.import_module(package)
    kind = writers.SummaryWriter
    before = [vars(kind)[name] for name in ("add_scalar", "add_scalars")]
    writer = kind("tb")
    with watched:

        def log(values, step):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.add_scalars("both", {"a": step, "b": torch.tensor(0.5)}, global_step=step)
            writer.add_text("text", "hello", step)
            writer.add_histogram("weights", torch.ones(4), step)

        losses = train(log)
    writer.close()
    assert [vars(kind)[name] for name in ("add_scalar", "add_scalars")] == before
    assert tracker_run() == {"tensorboard_dir": str(tmp_path / "tb")}

    assert [value for _, value in numbered_column(recorded, "kl")] == [0.0, 0.125, 0.25, 0.375]
    assert [value for _, value in numbered_column(recorded, "logged_loss")] == losses
    assert [value for _, value in numbered_column(recorded, "both/a")] == [0, 1, 2, 3]
    assert [value for _, value in numbered_column(recorded, "both/b")] == [0.5] * 4
    assert not any("text" in r.values or "weights" in r.values for r in steps(recorded))


def test_trackio_in_its_local_directory(recorded, tracker_run):
    import trackio
    from trackio.run import Run

    before = vars(Run)["log"]
    run = trackio.init(project="p", embed=False)
    with watched:
        losses = train(lambda values, step: trackio.log(values))
    trackio.finish()
    assert vars(Run)["log"] is before
    named = tracker_run()
    assert (named["trackio_project"], named["trackio_run"]) == ("p", run.name)
    assert not named.get("trackio_server")

    assert_values_are_recorded(recorded, losses)


def test_mlflow_by_its_functions_and_by_its_client(recorded, tracker_run, tmp_path):
    import mlflow
    from mlflow.entities import Metric
    from mlflow.tracking.client import MlflowClient

    before = [vars(MlflowClient)[name] for name in ("log_metric", "log_batch")]
    with mlflow.start_run() as run, watched:

        def log(values, step):
            mlflow.log_metrics({"kl": values["kl"], "reward": values["reward"]}, step=step)
            mlflow.log_metric("loss", values["loss"], step=step)
            seen = [Metric("mine", step, 0, step), Metric("system/cpu", 1.0, 0, step)]
            MlflowClient().log_batch(run.info.run_id, metrics=seen)

        losses = train(log)
    assert [vars(MlflowClient)[name] for name in ("log_metric", "log_batch")] == before
    uri = f"file:{tmp_path}/mlruns"
    assert tracker_run() == {"mlflow_run": run.info.run_id, "mlflow_uri": uri}

    assert [value for _, value in numbered_column(recorded, "kl")] == [0.0, 0.125, 0.25, 0.375]
    assert [value for _, value in numbered_column(recorded, "logged_loss")] == losses
    assert [value for _, value in numbered_column(recorded, "mine")] == [0, 1, 2, 3]
    assert not numbered_column(recorded, "system/cpu")


def test_a_nan_is_recorded_as_logged(recorded):
    import trackio

    trackio.init(project="p", embed=False)
    with watched:
        train(lambda values, step: trackio.log({"reward": math.nan if step == 2 else 1.0}))
    trackio.finish()

    bad = [step for step, value in numbered_column(recorded, "reward") if math.isnan(value)]
    assert bad == [3]


def test_values_a_trainer_reports_to_trackers_are_recorded_once(recorded, tmp_path):
    import tiny_models
    import wandb
    from torch.utils.tensorboard import SummaryWriter
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.integrations import integration_utils

    mine = SummaryWriter(str(tmp_path / "mine"))

    class Own(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            mine.add_scalar("own", state.global_step, state.global_step)

    tokens = tiny_models.tokenizer()
    args = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        report_to=["wandb", "tensorboard"],
        logging_steps=1,
        max_steps=3,
        per_device_train_batch_size=2,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    before = vars(integration_utils.TensorBoardCallback)["on_log"]
    with watched:
        trainer = Trainer(tiny_models.llama(tokens), args, train_dataset=tiny_models.rows(tokens))
        trainer.add_callback(Own())
        trainer.train()
    wandb.finish()
    wandb.teardown()
    mine.close()
    assert vars(integration_utils.TensorBoardCallback)["on_log"] is before

    names = [name for r in steps(recorded) for name in r.values]
    assert not [name for name in names if name.startswith("train/")]
    # Once more at the end of training.
    assert [value for _, value in numbered_column(recorded, "own")] == [1, 2, 3, 3]
    assert [step for step, _ in numbered_column(recorded, "logged_loss")] == [1, 2, 3]


def test_values_an_accelerator_logs_to_trackers_are_recorded_once(recorded, tmp_path):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("p")
    with watched:
        train(lambda values, step: accelerator.log({"kl": values["kl"]}, step=step))
        accelerator.get_tracker("tensorboard", unwrap=True).add_scalar("mine", 1.0, 4)
    accelerator.end_training()

    assert [value for _, value in numbered_column(recorded, "kl")] == [0.0, 0.125, 0.25, 0.375]
    assert [value for _, value in numbered_column(recorded, "mine")] == [1.0]


def test_training_is_bit_identical_with_and_without_monitoring(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "tb"))

    def losses():
        torch.manual_seed(7)
        random.seed(7)
        found = train(lambda values, step: writer.add_scalar("kl", torch.rand(()), step))
        return found, torch.get_rng_state().tolist(), random.getstate()

    without = losses()
    with watched:
        within = losses()
    writer.close()

    assert within == without
