"""Tests are collected without the frameworks: those that need one are skipped with its name."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKER = """
import sys

for name in (
    "accelerate", "datasets", "deepspeed", "lightning", "mlflow", "peft", "pytorch_lightning",
    "ray", "tensorboard", "tensorboardX", "trackio", "transformers", "trl", "verl", "wandb",
):
    sys.modules[name] = None
"""


def test_missing_frameworks_are_skipped_at_collection(tmp_path):
    (tmp_path / "blocker.py").write_text(BLOCKER)
    environ = {name: value for name, value in os.environ.items() if "REQUIRE" not in name}
    command = [sys.executable, "-m", "pytest", "-p", "blocker", "-p", "no:cacheprovider"]

    collected = subprocess.run(
        [*command, "--collect-only", "-q", "-rs", "tests/frameworks", "sentinel/integrations"],
        cwd=ROOT,
        env=environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert collected.returncode == 0, collected.stdout[-4000:] + collected.stderr[-2000:]
    assert "error" not in collected.stdout.lower().splitlines()[-1]
    for framework in ("lightning", "trl", "deepspeed"):
        assert framework in collected.stdout
