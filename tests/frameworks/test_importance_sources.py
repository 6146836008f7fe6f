"""Settings and outcomes of runs that W&B, TensorBoard's HParams and transformers have written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sentinel.insight.importance.run_collection import collect_runs

WANDB = """
import wandb
settings = wandb.Settings(x_disable_stats=True, console="off")
for lr in (0.1, 0.2):
    config = {"lr": lr, "lora": {"r": 8, "targets": ["q", "v"]}, "packing": True, "note": None}
    with wandb.init(project="p", mode="offline", settings=settings, config=config) as run:
        for step in range(3):
            run.log({"train/loss": lr + 1.0 / (step + 1)})
"""


def test_offline_runs_of_wandb(tmp_path):
    pytest.importorskip("wandb")
    environ = os.environ | {"WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WANDB], env=environ, check=True, timeout=240)

    found = collect_runs([tmp_path], "train/loss")
    runs = sorted(found.runs, key=lambda run: run["outcome"])

    assert found.outcome == "loss"
    assert [run["outcome"] for run in runs] == pytest.approx([0.1 + 1 / 3, 0.2 + 1 / 3])
    assert [run["settings"]["lr"] for run in runs] == [0.1, 0.2]
    assert runs[0]["settings"]["lora"] == {"r": 8, "targets": ["q", "v"]}


def test_runs_with_hparams_of_tensorboard(tmp_path):
    writing = pytest.importorskip("torch.utils.tensorboard")
    for number, rate in enumerate((0.1, 0.2)):
        with writing.SummaryWriter(str(tmp_path / f"run{number}")) as writer:
            settings = {"lr": rate, "bf16": True, "optimizer": "adamw"}
            writer.add_hparams(settings, {"final/accuracy": 1 - rate})
            for step in range(3):
                writer.add_scalar("train/loss", rate / (step + 1), step)

    runs = {run["name"]: run for run in collect_runs([tmp_path]).runs}

    assert runs["run0"]["settings"] == {"lr": 0.1, "bf16": True, "optimizer": "adamw"}
    assert runs["run1"]["outcome"] == pytest.approx(0.2 / 3)
