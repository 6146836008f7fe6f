"""The examples run unchanged and are recorded to their end."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.rank_processes import until

from sentinel.model.record import Event
from sentinel.store.artifact import list_artifacts
from sentinel.store.database import connect
from sentinel.store.history import History

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
CAPTURED = {
    *("loss", "grad_norm", "learning_rate", "optimizer_steps", "global_step"),
    *("step_time", "compute_time"),
}

EXAMPLES = {
    "plain_loop": ([], 300, "worst_error"),
    "ddp": ([*TORCHRUN, "--nproc-per-node", "2"], 200, "accuracy"),
}


@pytest.fixture
def environ(tmp_path):
    """An environment without the user's sentinel settings."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("SENTINEL_")
    }
    return environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "SENTINEL_HOME": str(tmp_path / "home"),
        "SENTINEL_RUNTIME_DIR": str(tmp_path / "rings"),
        "SENTINEL_LINGER_SECONDS": "0",
    }


def wait_for_file(folder: Path, name: str) -> Path:
    """The only file of that name below `folder`, once it exists."""
    return until(lambda: list(folder.glob(f"runs/*/{name}")), 240.0, f"{name} is written")[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_recorded_to_its_end(name, environ, tmp_path):
    launcher, steps, logged = EXAMPLES[name]
    command = [sys.executable, *launcher, str(ROOT / "examples" / f"{name}.py")]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, timeout=600)
    path = wait_for_file(tmp_path / "home", "outcome.json")

    outcome = json.loads(path.read_text())
    assert (outcome["outcome"], outcome["step"]) == ("finished", steps)
    with closing(connect(path.with_name("sentinel.db"))) as database:
        records = [each for each in History(database).records("") if each.event is Event.STEP]
    assert records[-1].step == steps
    # Without clipping, the gradient norm is measured at the first two steps, then rarely.
    assert {name for record in records for name in record.values} == {*CAPTURED, logged}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_example_of_insight_stores_its_results_and_finds_the_learning_rate(environ, tmp_path):
    script = str(ROOT / "examples" / "trl_dpo_insight.py")
    short = {"STEPS": "12", "EVALUATIONS": "25", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, script, "learning-rate"]
    subprocess.run(command, env=environ | short, cwd=tmp_path, check=True, timeout=600)
    path = wait_for_file(tmp_path / "home", "outcome.json")

    stored = [each["kind"] for each in list_artifacts(path.parent)]
    assert sorted(stored) == ["loss_surface", "trajectory"]
    with closing(connect(path.with_name("sentinel.db"))) as database:
        records = History(database).records("")
        values = {name for each in records for name in each.values}
    assert {"sharpness", "distance_to_reference"} <= values
    assert any(name.startswith("layer_update_ratio/") for name in values)
    command = [sys.executable, "-m", "sentinel", "report", path.parent.name, "--md"]
    report = subprocess.run(command, env=environ, check=True, timeout=600, stdout=subprocess.PIPE)
    assert b"Learning rate too high" in report.stdout
