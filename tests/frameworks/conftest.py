"""Fixtures of the framework tests: no network access, and a tiny model."""

import os

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
    "DS_ACCELERATOR": "cpu",
}
"""Set before any framework is imported; ranks inherit it."""

os.environ.update(OFFLINE_ENVIRONMENT)

# Scripts for ranks would train when imported.
collect_ignore_glob = ["*_ranks.py"]


@pytest.fixture(scope="session", autouse=True)
def runs_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the runs that trainers write to W&B out of the working directory."""
    os.environ["WANDB_DIR"] = str(tmp_path_factory.mktemp("wandb"))


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
