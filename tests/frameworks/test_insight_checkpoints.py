"""Loss surfaces of saved Transformers models and PEFT adapters, on text and on pairs."""

import json
import math
from pathlib import Path

import pytest
import tiny_models
import torch
from requirements import need

need("transformers", "peft", "scipy")

from sentinel.cli._insight_surface import SurfaceRequest, compute_surface
from sentinel.insight.surface.saved_model import load_model
from sentinel.insight.trajectory.saved_weights import CheckpointError

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

SMALL = {"dimensions": 1, "max_evaluations": 5, "cache": False}


def surface_of(checkpoint, data, **options):
    settings = SMALL | options.pop("settings", {})
    request = SurfaceRequest(Path(checkpoint), data, settings=settings, **options)
    return compute_surface(request, lambda *_: None)


def rows(path, *values):
    path.write_text("\n".join(map(json.dumps, values)))
    return path


def test_the_loss_of_text_is_that_of_the_completion(tokens, tiny_path, tmp_path):
    prompt, completion = "the quick", " fox jumps"
    data = rows(tmp_path / "rows.jsonl", {"prompt": prompt, "completion": completion})

    surface = surface_of(tiny_path, data)

    ids = [*tokens(prompt)["input_ids"], *tokens(completion)["input_ids"], tokens.eos_token_id]
    labels = [-100] * len(tokens(prompt)["input_ids"]) + ids[len(tokens(prompt)["input_ids"]) :]
    with torch.no_grad():
        loss = tiny_models.llama(tokens)(torch.tensor([ids]), labels=torch.tensor([labels])).loss
    assert surface.center["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_pairs_have_the_loss_of_dpo_against_a_reference(tokens, tiny_path, tmp_path):
    pair = {"prompt": "the quick", "chosen": " fox jumps", "rejected": " dog"}
    data = rows(tmp_path / "pairs.jsonl", pair)
    other = tiny_models.saved(tmp_path / "other", tokens, seed=1)

    same = surface_of(tiny_path, data, reference=Path(tiny_path))
    moved = surface_of(other, data, reference=Path(tiny_path))

    assert same.center["loss"] == pytest.approx(math.log(2))
    assert abs(moved.center["loss"] - math.log(2)) > 1e-4
    with pytest.raises(CheckpointError, match="--reference FOLDER"):
        surface_of(tiny_path, data)


def test_of_an_adapter_only_its_weights_are_varied(tokens, tiny_path, tmp_path):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_models.llama(tokens), config)
    model.peft_config["default"].base_model_name_or_path = "moved-away"
    model.save_pretrained(tmp_path / "lora")
    data = rows(tmp_path / "rows.jsonl", {"text": "the quick brown fox"})

    surface = surface_of(tmp_path / "lora", data, base=Path(tiny_path))

    assert surface.parameter_count == 2 * 2 * (16 + 16)
    with pytest.raises(CheckpointError, match="--base FOLDER"):
        load_model(tmp_path / "lora")


def test_code_of_a_checkpoint_is_not_run(tiny_path, tmp_path):
    config = json.loads(Path(tiny_path, "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")

    with pytest.raises(CheckpointError, match="code of its own"):
        load_model(tmp_path)
