"""Fixtures of the framework tests: no network access, and ranks as real processes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.fork_server import TORCH, ForkedProcess
from support.forked_ranks import start_ranks
from support.rank_processes import until

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

DEADLINE = 300.0
"""Time limit for a few ranks that train a few steps, on a slow machine."""


@pytest.fixture(scope="session", autouse=True)
def runs_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the runs that trainers write to W&B out of the working directory."""
    os.environ["WANDB_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture
def run_ranks(fork_server, tmp_path: Path) -> Callable[..., str]:
    """Returns a function that runs a script as several ranks of one node and returns their output.

    They have the environment of torchrun's ranks, the ring directory of the test, so `recorded`
    reads their rings, and can import the test helpers. torch and the modules of `frameworks` are
    imported already.
    """

    def run(text: str, ranks: int = 2, frameworks: Sequence[str] = (), **environment: str) -> str:
        path, log = tmp_path / "ranks.py", tmp_path / "ranks.log"
        path.write_text(text)
        here = Path(__file__).parent
        known = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
        environment |= {"PYTHONPATH": os.pathsep.join(known)}
        server = fork_server(*TORCH, *frameworks)
        with log.open("w") as output:
            started = start_ranks(server, [path], ranks, cwd=tmp_path, output=output, **environment)
        try:
            until(lambda: _are_over(started), DEADLINE, "the ranks have ended")
        finally:
            for each in started:
                each.kill()
        assert [each.wait() for each in started] == [0] * ranks, log.read_text()[-6000:]
        return log.read_text()

    return run


def _are_over(ranks: list[ForkedProcess]) -> bool:
    """Whether all have ended, or one has failed."""
    codes = [rank.poll() for rank in ranks]
    return None not in codes or any(codes)


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
