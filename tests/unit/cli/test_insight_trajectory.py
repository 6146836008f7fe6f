"""`sentinel insight trajectory`: folders of checkpoints, and runs that recorded their weights."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.insight import TrajectoryRecorder
from sentinel.store.artifact import save_artifact
from sentinel.transport.paths import run_dir


def run(*arguments, status=0):
    done = CliRunner().invoke(app, ["insight", "trajectory", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def folders(tmp_path):
    """Two runs of checkpoints, the first of which is stored as a recorded run too."""
    for number, rate in enumerate((1.0, 3.0)):
        model = nn.Linear(2, 1, bias=False)
        recorder = None
        for step in (10, 20, 30):
            nn.init.constant_(model.weight, 1 + rate * step)
            recorder = recorder or TrajectoryRecorder(model)
            recorder.record(step, 0.5 / step)
            folder = tmp_path / f"lr-{rate:.0f}" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            save_file(model.state_dict(), folder / "model.safetensors")
        if not number:
            directory = run_dir("grpo-7b")
            save_artifact(directory, recorder.result())
    return tmp_path / "lr-1", tmp_path / "lr-3"


def test_the_paths_of_two_folders(folders):
    text = run(*folders)
    assert "lr-1" in text
    assert "10 to 30" in text
    assert "1.00" in text
    assert "The plane explains 100% and 0% of the variance of 2 weights." in text


def test_a_recorded_run_and_a_folder_as_json(folders):
    result = json.loads(run("grpo-7b", folders[1], "--json"))
    assert [each["name"] for each in result["runs"]] == ["grpo-7b", "lr-3"]
    assert result["runs"][0]["loss"] == [0.05, 0.025, 0.5 / 30]
    assert result["runs"][1]["straightness"] == pytest.approx(1)


def test_checkpoints_one_by_one_are_one_path(folders):
    paths = [folders[0] / f"checkpoint-{step}" for step in (10, 20)]
    result = json.loads(run(*paths, "--json", "--reference", folders[1] / "checkpoint-10"))
    (only,) = result["runs"]
    assert only["steps"] == [10, 20]
    assert only["distance_to_reference"] == pytest.approx([20 / 11, 10 / 11])


def test_an_html_file(folders, tmp_path):
    assert run(folders[0], "-o", tmp_path / "path.html").startswith("Wrote ")
    assert "trajectory" in (tmp_path / "path.html").read_text()


def test_errors_name_the_source(folders, tmp_path):
    torch.save([1], tmp_path / "a.pt")
    assert "holds no state dict" in run(tmp_path / "a.pt", status=2)
    assert "There is no checkpoint" in run("nowhere", status=2)
    assert "No parameter matches '*lora*'" in run(folders[0], "--parameters", "*lora*", status=2)
    run_dir("sft")
    assert "The run sft has no trajectory" in run("sft", status=2)
