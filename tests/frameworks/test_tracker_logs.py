"""Logs that the trackers themselves write become runs with images and histograms."""

from __future__ import annotations

import json

import pytest
from requirements import need

need("torch", "wandb", "tensorboard", "transformers")

import numpy as np
import transformers
import wandb
from torch.utils.tensorboard import SummaryWriter

from sentinel.config.settings import load_replay_settings
from sentinel.readers.log_folder import find_logs
from sentinel.store.imports.log_import import LogImport
from sentinel.store.run_reader import RunReader

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

STEPS = 40
RANDOM = np.random.default_rng(0)


def imported(folder, count):
    """Readers of the imported logs below a folder, by the name of their run."""
    logs = find_logs(folder)
    assert len(logs) == count, logs
    settings, readers = load_replay_settings((), {}), {}
    for log in logs:
        database = folder.parent / f"{log.run}.db"
        with LogImport(log.path, settings, database, log.run) as importing:
            importing.read()
        readers[log.run] = RunReader(database)
    return readers


def check_media(reader, images, histograms):
    """Image and histogram of each name can be read."""
    media = reader.media(limit=1000)
    assert {each["name"] for each in media if each["kind"] == "image"} == images
    assert {each["name"] for each in media if each["kind"] == "histogram"} == histograms
    for each in media:
        kind, body = reader.media_body(each["id"])
        if each["kind"] == "image":
            assert (kind, each["width"], each["height"]) == ("image/png", 24, 16)
        else:
            counts = json.loads(body)["counts"]
            assert sum(counts) == 1000


def test_tensorboard_folder_of_two_runs(tmp_path):
    for name in ("lr-1", "lr-2"):
        with SummaryWriter(str(tmp_path / "logs" / name)) as writer:
            for step in range(STEPS):
                writer.add_scalar("train/loss", 3.0 / (step + 1), step)
                writer.add_scalars("both", {"a": step, "b": 2 * step}, step)
                if step % 10 == 0:
                    writer.add_image("drawn", RANDOM.random((3, 16, 24)), step)
                    writer.add_histogram("weights", RANDOM.standard_normal(1000), step)
            writer.add_hparams({"learning_rate": 1e-4}, {"final": 1.0}, run_name="1.5")
    readers = imported(tmp_path / "logs", 2)
    assert readers.keys() == {"lr-1", "lr-2"}
    for reader in readers.values():
        assert reader.series(["loss"])["series"]["loss"]["count"] == STEPS
        check_media(reader, {"drawn"}, {"weights"})


def test_wandb_offline_runs(tmp_path):
    (tmp_path / "logs").mkdir()
    # Arguments, since another test of this process may have started a session.
    run = wandb.init(
        project="mine",
        config={"learning_rate": 1e-4},
        mode="offline",
        dir=str(tmp_path / "logs"),
    )
    for step in range(STEPS):
        row = {"loss": 3.0 / (step + 1)}
        if step % 10 == 0:
            pixels = [RANDOM.integers(0, 255, (16, 24, 3), dtype="uint8") for _ in range(3)]
            row["drawn"] = wandb.Image(pixels[0])
            row["pair"] = [wandb.Image(each) for each in pixels[1:]]
            row["weights"] = wandb.Histogram(RANDOM.standard_normal(1000))
        run.log(row)
    run.finish()
    ((name, reader),) = imported(tmp_path / "logs", 1).items()
    assert name.startswith("wandb-offline-run-")
    assert reader.series(["loss"])["series"]["loss"]["count"] == STEPS
    assert {each["name"] for each in reader.signals()} == {"loss"}
    check_media(reader, {"drawn", "pair", "pair/1"}, {"weights"})


def test_output_directory_of_transformers(tmp_path):
    state = transformers.TrainerState(
        global_step=STEPS,
        max_steps=STEPS,
        log_history=[{"step": n, "loss": 3.0 / n, "epoch": n / STEPS} for n in range(1, STEPS + 1)],
    )
    for folder in ("", "checkpoint-20", "checkpoint-40"):
        (tmp_path / "logs" / "run" / folder).mkdir(parents=True, exist_ok=True)
        state.save_to_json(str(tmp_path / "logs" / "run" / folder / "trainer_state.json"))
    ((name, reader),) = imported(tmp_path / "logs", 1).items()
    assert name == "run"
    assert reader.series(["loss"])["series"]["loss"]["count"] == STEPS
    assert [each["step"] for each in reader.timeline()["events"] if each["event"] == "save"] == [
        20,
        40,
    ]
