"""The path of a LoRA adapter: recorded in training, and from the adapters that PEFT saved."""

import numpy as np
import pytest
import torch
from requirements import need

need("torch", "peft", "transformers")
from peft import LoraConfig, get_peft_model

from sentinel.insight import TrajectoryRecorder, principal_directions, trajectory
from sentinel.insight.trajectory.saved_weights import open_weights

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


def test_an_adapter_in_training_and_saved(tmp_path):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    config = LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"])
    model = get_peft_model(layers, config)
    inputs, targets = torch.randn(32, 8), torch.randn(32, 2)
    recorder = TrajectoryRecorder(model)
    for step in range(31):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        if step % 10 == 0:
            recorder.record(step, loss)
            model.save_pretrained(tmp_path / f"checkpoint-{step}")
        loss.backward()
        with torch.no_grad():
            for parameter in filter(lambda each: each.requires_grad, model.parameters()):
                parameter.add_(parameter.grad, alpha=-0.3)
                parameter.grad = None

    saved = open_weights(tmp_path / "checkpoint-10")
    assert {*recorder.names} == {*saved.shapes}
    assert recorder.projection.parameter_count == 2 * 8 + 16 * 2 + 16 * 2 + 2
    both = trajectory({"recorded": recorder, "saved": tmp_path})
    first, second = both.runs
    np.testing.assert_allclose(first["x"], second["x"], atol=1e-6)
    assert first["steps"] == second["steps"] == [0, 10, 20, 30]
    assert first["loss"][-1] < first["loss"][0]
    # LoRA's B is zero at the start, so its adapter is the reference: the base model.
    only_b = trajectory(tmp_path, parameters="*lora_B*")
    assert only_b.runs[0]["initial_norm"] == 0
    assert "absolute" in only_b.note[-1]
    plane = principal_directions([tmp_path / f"checkpoint-{step}" for step in (0, 10, 20, 30)])
    assert {*plane.directions[0]} == {*saved.shapes}
    exact = trajectory(tmp_path).runs[0]
    np.testing.assert_allclose(np.array(plane.coordinates)[:, 0], exact["x"], atol=1e-6)
