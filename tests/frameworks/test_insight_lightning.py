"""Loss surface, sharpness, trajectory and gradient flow beside `lightning.Trainer`."""

import pytest
import torch
from requirements import need
from side_effects import random_state, seed, weights

need("lightning", "scipy")
from lightning_modules import Net, Two, data, trainer

from sentinel.client.session import current_session
from sentinel.insight.callbacks import lightning as callbacks

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

SMALL = {"max_evaluations": 49, "max_share": None}


def fitted(module, tmp_path, *own, **settings):
    """What a training ends with."""
    fit = trainer(tmp_path, callbacks=[*own], **{"max_steps": 5, **settings})
    fit.fit(module, data())
    metrics = {name: float(value) for name, value in fit.callback_metrics.items()}
    return weights(module), random_state(), getattr(module, "losses", None), metrics


def test_a_fit_with_insight_equals_one_without(tmp_path):
    results = []
    surfaces = callbacks.LightningLossSurfaceCallback(every=2, snapshots=4, **SMALL)
    curvature = callbacks.LightningSharpnessCallback(every=2, max_share=None)
    path = callbacks.LightningTrajectoryCallback(every=1)
    for own in ((), (surfaces, curvature, path)):
        seed()
        results.append(fitted(Net(), tmp_path, *own))

    assert results[0] == results[1]
    assert [each.step for each in surfaces.results] == [2, 4, 5]
    # Of five steps and the start, at most four copies are kept, evenly.
    assert [each["step"] for each in surfaces.results[-1].trajectory] == [0, 2, 4]
    # SGD with learning rate 0.1 is stable up to 20.
    assert curvature.results[0].limit == pytest.approx(20.0)
    assert path.results[0].runs[0]["steps"] == [0, 1, 2, 3, 4, 5]
    assert path.results[0].runs[0]["loss"][1:] == pytest.approx(results[1][2])


def test_surfaces_are_computed_after_checkpoints(tmp_path):
    surfaces = callbacks.LightningLossSurfaceCallback(
        on_save=True, at_end=False, dimensions=1, max_evaluations=9, max_share=None
    )
    from lightning.pytorch.callbacks import ModelCheckpoint

    saves = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3)

    fitted(Net(), tmp_path, saves, surfaces, max_steps=7, enable_checkpointing=True)

    assert len(surfaces.results) == 2


def test_a_resumed_fit_continues_the_path(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    runs = []
    for resume in (None, tmp_path / "epoch=0-step=3.ckpt"):
        path = callbacks.LightningTrajectoryCallback(every=1)
        other = callbacks.LightningTrajectoryCallback(every=2)
        saves = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1)
        fit = trainer(
            tmp_path, callbacks=[path, other, saves], max_steps=5, enable_checkpointing=True
        )
        fit.fit(Net(), data(), ckpt_path=resume, weights_only=True)
        runs.append(path.results[0].runs[0])

    assert runs[0]["steps"] == runs[1]["steps"] == [0, 1, 2, 3, 4, 5]
    assert runs[0]["loss"][:4] == runs[1]["loss"][:4]


@pytest.mark.swallows_errors
def test_manual_optimization_needs_a_loss_function(tmp_path, capsys):
    refused = callbacks.LightningLossSurfaceCallback(**SMALL)
    given = callbacks.LightningLossSurfaceCallback(
        loss_fn=lambda module, batch: (module.large(batch) ** 2).mean(), **SMALL
    )

    fitted(Two(), tmp_path, refused, given)

    assert not refused.results
    assert len(given.results) == 1
    assert "automatic_optimization" in capsys.readouterr().err


def test_gradient_flow_needs_no_decorator(tmp_path, recorded):
    flow = callbacks.LightningGradientFlowCallback(every=1, run="test", agent=False, strict=True)

    fitted(Net(), tmp_path, flow)

    assert current_session() is None
    assert any(each.event.value == "layers" for each in recorded()[0])
    assert torch.is_grad_enabled()
