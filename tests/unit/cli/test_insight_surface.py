"""`sentinel insight surface`: reads checkpoints without unpickling; errors name the remedy."""

import json

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.store.artifact import list_artifacts
from sentinel.transport.paths import run_dir

NETS = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

def loss(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()

def failing(model, batch):
    raise KeyError("x")
"""
USUAL = ("--data", "batch.safetensors", "--model", "own_nets:build", "--loss", "own_nets:loss")


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Two checkpoints and a pickle of a net that a module in the working directory builds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nets.py").write_text(NETS)
    nets = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        nets.append(
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        )
        torch.save(nets[-1].state_dict(), tmp_path / f"net-{seed}.pt")
    torch.save(nets[0], tmp_path / "pickle.pt")
    batch = {"x": torch.randn(16, 4), "y": torch.randn(16, 1)}
    save_file(batch, tmp_path / "batch.safetensors")
    content = (tmp_path / "batch.safetensors").read_bytes()
    (tmp_path / "damaged.safetensors").write_bytes(content[:-1])
    return nets, batch


def invoke(*arguments):
    return CliRunner().invoke(app, ["insight", "surface", *arguments])


def test_the_line_between_two_checkpoints_has_their_losses(checkpoints):
    nets, batch = checkpoints

    done = invoke("net-0.pt", "--other", "net-1.pt", *USUAL, "--evaluations", "25", "--json")

    assert done.exit_code == 0, done.stderr
    surface = json.loads(done.stdout)
    points = {round(x, 6): loss for x, _, loss in surface["points"]}
    for place, net in zip((0.0, 1.0), nets, strict=True):
        expected = ((net(batch["x"]) - batch["y"]) ** 2).mean().item()
        if place in points:
            assert points[place] == pytest.approx(expected, rel=1e-5)
    assert surface["center"]["loss"] == points[0.0]
    assert surface["parameter_count"] == 49
    assert surface["step"] == 0


def test_a_surface_is_stored_with_a_run_and_written_as_a_page(checkpoints, tmp_path):
    folder = run_dir("mine-1")

    done = invoke(
        "net-0.pt", *USUAL, "--evaluations", "25", "--run", "mine-1", "-o", "surface.html"
    )

    assert done.exit_code == 0, done.stderr
    assert [each["kind"] for each in list_artifacts(folder)] == ["loss_surface"]
    assert "<html" in (tmp_path / "surface.html").read_text()
    assert not done.stdout


def test_the_terminal_shows_a_map(checkpoints):
    done = invoke("net-0.pt", *USUAL, "--evaluations", "25")

    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("Loss at the checkpoint ")
    assert "evaluations of 49 weights" in done.stdout


def test_a_part_is_sampled_more_finely_with_the_points_of_the_cache(checkpoints, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    small = ("net-0.pt", *USUAL, "--evaluations", "100", "--json")

    whole = json.loads(invoke(*small).stdout)
    zoomed = invoke(*small, "--zoom", "-0.2:0.2,0.1:0.5")
    text = invoke(*small[:-1], "--zoom", "-0.2:0.2,0.1:0.5")

    assert zoomed.exit_code == 0, zoomed.stderr
    finer = json.loads(zoomed.stdout)
    (region,) = finer["regions"]
    assert region["x"][0] <= -0.2
    assert region["y"][-1] >= 0.5
    new = len(finer["points"]) - len(whole["points"])
    assert 0 < finer["evaluations"] <= new + 6
    assert "Sampled more finely: " in text.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pickle.pt", *USUAL), "more than tensors"),
        (("net-0.pt", "--data", "batch.safetensors"), "no config.json"),
        (("net-0.pt", "--data", "damaged.safetensors", *USUAL[2:]), "Cannot read damaged"),
        (("net-9.pt", *USUAL), "There is no checkpoint net-9.pt"),
        (("net-0.pt", *USUAL, "--run", "nobody"), "no run nobody"),
        (("net-0.pt", *USUAL[:4], "--loss", "own_nets:failing"), "cannot be computed: KeyError"),
        (("net-0.pt", *USUAL[:4], "--loss", "own_nets:none"), "no function own_nets:none"),
        (("net-0.pt", *USUAL, "--parameters", "nothing*"), "nothing*"),
        (("net-0.pt", *USUAL, "--zoom", "0.1:0.2"), "--zoom 0.1:0.2 is not a range for each axis"),
        (("net-0.pt", *USUAL, "--zoom", "0:3,0:1"), "`bounds` 0 to 3 are not within those"),
    ],
)
def test_what_cannot_be_read_is_named(checkpoints, arguments, message):
    done = invoke(*arguments)

    assert done.exit_code == 2
    assert message in done.stderr
    assert not done.stdout


def test_a_pickle_in_a_folder_of_transformers_is_one_sentence(checkpoints, tmp_path):
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(tmp_path / "folder")
    (tmp_path / "pickle.pt").rename(tmp_path / "folder" / "pytorch_model.bin")

    done = invoke("folder", "--data", "batch.safetensors")

    assert done.exit_code == 2
    assert "more than tensors, which are not unpickled: save them" in " ".join(done.stderr.split())
