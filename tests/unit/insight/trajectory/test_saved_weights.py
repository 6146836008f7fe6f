"""Which weights a checkpoint on disk holds, and that no object of it is unpickled."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sentinel.insight.trajectory import saved_weights
from sentinel.insight.trajectory.saved_weights import (
    CheckpointError,
    common_names,
    find_checkpoints,
    open_weights,
)

TENSORS = {
    "layer.weight": torch.arange(12.0).reshape(4, 3),
    "layer.bias": torch.arange(3.0).to(torch.bfloat16),
    "scale": torch.tensor(2.5),
    "none": torch.zeros(0, 3),
    "steps": torch.tensor(7),
}


def contents(source):
    weights = open_weights(source)
    return {
        name: torch.cat([torch.zeros(0), *(piece for _, _, piece in weights.pieces([name]))])
        for name in weights.shapes
    }


def write_shards(folder):
    save_file(
        {"layer.weight": TENSORS["layer.weight"]}, folder / "model-00001-of-00002.safetensors"
    )
    rest = {name: tensor for name, tensor in TENSORS.items() if name != "layer.weight"}
    save_file(rest, folder / "model-00002-of-00002.safetensors")
    files = dict.fromkeys(rest, "model-00002-of-00002.safetensors")
    index = {"weight_map": {"layer.weight": "model-00001-of-00002.safetensors", **files}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


WRITERS = {
    "state dict": lambda folder: TENSORS,
    "safetensors": lambda folder: (
        save_file(TENSORS, folder / "w.safetensors") or folder / "w.safetensors"
    ),
    "folder": lambda folder: save_file(TENSORS, folder / "model.safetensors") or folder,
    "adapter": lambda folder: save_file(TENSORS, folder / "adapter_model.safetensors") or folder,
    "shards": write_shards,
    "index": lambda folder: write_shards(folder) / "model.safetensors.index.json",
    "torch": lambda folder: torch.save(TENSORS, folder / "w.pt") or folder / "w.pt",
    "ddp": lambda folder: (
        torch.save(
            {"model": {f"module.{name}": tensor for name, tensor in TENSORS.items()}, "step": 3},
            folder / "w.pt",
        )
        or folder / "w.pt"
    ),
    "old torch": lambda folder: (
        torch.save(TENSORS, folder / "w.pt", _use_new_zipfile_serialization=False)
        or folder / "w.pt"
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_format_gives_the_same_weights(tmp_path, writer):
    found = contents(WRITERS[writer](tmp_path))
    assert {*found} == {*TENSORS} - {"steps"}
    for name, flat in found.items():
        assert torch.equal(flat.float(), TENSORS[name].reshape(-1).float())


def test_a_tensor_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_weights, "MAX_PIECE_ELEMENTS", 7)
    save_file(TENSORS, tmp_path / "w.safetensors")
    pieces = [*open_weights(tmp_path / "w.safetensors").pieces(["layer.weight"])]
    assert [(name, start, len(piece)) for name, start, piece in pieces] == [
        ("layer.weight", 0, 6),
        ("layer.weight", 6, 6),
    ]


def test_a_module_has_its_parameters():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert [*open_weights(model).shapes] == [name for name, _ in model.named_parameters()]


def test_an_object_is_never_unpickled(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"state_dict": TENSORS, "extra": Harmful()}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"would run code .* save its state dict as"):
        open_weights(tmp_path / "w.pt")
    assert not (tmp_path / "made").exists()


def test_an_old_torch_reads_no_pickle(tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "w.pt")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match=r"PyTorch 2\.6 or newer"):
        open_weights(tmp_path / "w.pt")


def test_checkpoints_of_a_run_are_in_the_order_of_their_steps(tmp_path):
    for step in (100, 20, 3):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file(TENSORS, folder / "model.safetensors")
        rows = [{"step": 1, "loss": 9.0}, {"step": step, "loss": 0.5}, {"step": 500, "loss": 0.1}]
        state = {"global_step": step, "log_history": rows}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    save_file(TENSORS, tmp_path / "model.safetensors")
    opened = [open_weights(each) for each in find_checkpoints(tmp_path)]
    assert [(each.step, each.loss) for each in opened] == [(3, 0.5), (20, 0.5), (100, 0.5)]


def test_files_of_a_run_without_those_that_hold_no_weights(tmp_path):
    for name in ("model_10.pt", "model_9.pt", "optimizer_9.pt", "rng_state.pth"):
        torch.save(TENSORS, tmp_path / name)
    (tmp_path / "notes.txt").write_text("")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["model_9.pt", "model_10.pt"]


def test_step_and_loss_beside_the_weights(tmp_path):
    torch.save({"model_state_dict": TENSORS, "step": 7, "loss": 0.25}, tmp_path / "w.pt")
    weights = open_weights(tmp_path / "w.pt")
    assert (weights.step, weights.loss) == (7, 0.25)


def broken(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda folder: folder / "none", "There is no checkpoint"),
        (lambda folder: folder, "There is no checkpoint in"),
        (lambda folder: broken(folder, ".metadata", b"").parent, "dcp_to_torch"),
        (lambda folder: broken(folder, "a.safetensors", b"x" * 99), "no safetensors file"),
        (lambda folder: broken(folder, "a.pt", b"junk"), "a.pt"),
        (lambda folder: broken(folder, "a.pt", b""), "a.pt"),
        (lambda folder: torch.save([1], folder / "a.pt") or folder / "a.pt", "no state dict"),
        (lambda folder: {"a": torch.tensor(1)}, "no floating-point tensors"),
        (lambda folder: broken(folder, "model.safetensors.index.json", b"[]"), "no index"),
        (
            lambda folder: broken(
                folder, "model.safetensors.index.json", b'{"weight_map": {"a": "../../a.bin"}}'
            ),
            "not a file beside it",
        ),
        (lambda folder: 3, "from int: give a path"),
    ],
)
def test_errors_name_what_to_do(tmp_path, make, text):
    with pytest.raises(CheckpointError, match=text):
        open_weights(make(tmp_path))


def test_checkpoints_of_different_models():
    first, same = open_weights(TENSORS), open_weights({**TENSORS, "more": torch.zeros(2)})
    batch_norm = open_weights(nn.BatchNorm1d(3).state_dict())
    assert common_names([first, same]) == ["layer.weight", "layer.bias", "scale", "none"]
    assert common_names([batch_norm]) == ["weight", "bias"]
    with pytest.raises(CheckpointError, match="have no weight in common"):
        common_names([first, batch_norm])
    other = open_weights({"scale": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"scale is \[\] in the state dict and \[2\]"):
        common_names([first, other])
    with pytest.raises(CheckpointError, match="no weight 'head'"):
        first.shape("head")
