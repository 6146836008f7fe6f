"""Fixtures of the framework tests: no network access, and ranks as real processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OFFLINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1",
}
"""Set before any framework is imported; ranks inherit it."""

os.environ.update(OFFLINE_ENVIRONMENT)

# Scripts for ranks would train when imported.
collect_ignore_glob = ["*_ranks.py"]

DEADLINE = 300.0
"""Time limit for a few ranks that train a few steps, on a slow machine."""


@pytest.fixture(scope="session", autouse=True)
def runs_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the runs that trainers write to W&B out of the working directory."""
    os.environ["WANDB_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., str]:
    """Returns a function that runs a script as several ranks of one node and returns their output.

    The ranks use the ring directory of the test, so `recorded` reads their rings. They can import
    the test helpers.
    """

    def run(text: str, ranks: int = 2, **environment: str) -> str:
        path = tmp_path / "ranks.py"
        path.write_text(text)
        here = Path(__file__).parent
        known = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*command, "--nproc-per-node", str(ranks), str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(known), **environment},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tokens():
    """The tiny tokenizer."""
    import tiny_models

    return tiny_models.tokenizer()


@pytest.fixture(scope="session")
def tiny_path(tokens, tmp_path_factory):
    """The folder of the tiny model and its tokenizer."""
    import tiny_models

    return tiny_models.saved(tmp_path_factory.mktemp("model") / "tiny-llama", tokens)
