"""Loss surface, sharpness and trajectory beside trainers of Transformers and TRL."""

import copy
import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from requirements import need
from side_effects import random_state, seed, weights

import sentinel
from sentinel.client.session import current_session
from sentinel.store.artifact import list_artifacts, load_artifact

need("trl", "transformers", "datasets", "peft", "scipy")
import tiny_models
from recording_trainers import BETA, logs, of_trl, plain
from support.training_loops import column
from transformers import TrainerCallback

from sentinel.insight.callbacks import loss_measurement
from sentinel.insight.callbacks.recording import FILE_NAME
from sentinel.insight.callbacks.transformers import (
    GradientFlowCallback,
    LossSurfaceCallback,
    SharpnessCallback,
    TrajectoryCallback,
)
from sentinel.insight.surface.loss_surface import LossSurface

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

RARE = [pytest.param(name, marks=pytest.mark.full) for name in ("kto", "reward", "rloo")]
SMALL = {"max_evaluations": 9, "arrows": False, "max_share": None}


@pytest.fixture
def build(tokens, tiny_path, tmp_path):
    return lambda name, **settings: of_trl(name, tokens, tiny_path, tmp_path / "out", **settings)


def trained(trainer, *callbacks):
    """What a training ends with: weights, random state, losses and logs without times."""
    for each in callbacks:
        trainer.add_callback(each)
    trainer.train()
    history = [
        {name: value for name, value in row.items() if "time" not in name and "second" not in name}
        for row in trainer.state.log_history
    ]
    return weights(trainer.model), random_state(), trainer.losses, history


@pytest.mark.parametrize(
    "name", ["dpo", pytest.param("sft", marks=pytest.mark.full), "grpo", *RARE]
)
def test_a_training_with_surfaces_equals_one_without(build, name):
    results = []
    surfaces = LossSurfaceCallback(every=2, at_end=False, **SMALL)
    curvature = SharpnessCallback(every=3, at_end=False, max_share=None, tolerance=0.1)
    for callbacks in ((), (surfaces, curvature, TrajectoryCallback(every=1))):
        seed()
        results.append(trained(build(name), *callbacks))

    assert results[0] == results[1]
    (surface,) = surfaces.results
    # Nine points, the centre once more, and the lowest place between them.
    assert surface.step == 2
    assert 10 <= surface.evaluations <= 12
    assert surface.parameter_count > 1000
    assert curvature.results[0].eigenvalues[0] > 0


class StepsOfAnIncident(TrainerCallback):
    """An agent publishes that an incident is firing at these steps."""

    def __init__(self, monkeypatch, steps):
        self.step, self.steps = 0, steps
        monkeypatch.setattr(loss_measurement, "_firing_incidents", lambda: int(self.step in steps))

    def on_step_end(self, args, state, control, **_):
        self.step = state.global_step


@pytest.mark.parametrize(("stride", "expected"), [("auto", [3, 4, 5, 6]), (None, [6])])
def test_surfaces_are_more_frequent_while_an_incident_is_firing(
    tokens, tmp_path, monkeypatch, stride, expected
):
    results = []
    surfaces = LossSurfaceCallback(every=6, every_in_incident=stride, at_end=False, **SMALL)
    incident = StepsOfAnIncident(monkeypatch, {3, 4, 5})
    for callbacks in ([], [incident, surfaces]):
        seed()
        trainer = plain(tokens, tmp_path / "out", callbacks=callbacks, max_steps=7)
        results.append(trained(trainer))

    assert results[0] == results[1]
    assert [each.step for each in surfaces.results] == expected
    assert [each.step for each in surfaces.results[-1:]] == expected[-1:]


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", *RARE])
def test_the_centre_of_the_surface_has_the_loss_of_the_trainer(build, name):
    surfaces = LossSurfaceCallback(every=1, at_end=False, dimensions=1, **SMALL)

    # That of SFT is a share of the tokens of all micro-batches, of which one is kept.
    count = 1 if name == "sft" else 2
    settings = {"gradient_accumulation_steps": count, "learning_rate": 0.0}
    trainer = build(name, max_steps=1, **settings)
    trained(trainer, surfaces)

    (surface,) = surfaces.results
    expected = count * trainer.losses[0]
    assert surface.center["loss"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    around = [loss for *_, loss in surface.points]
    assert max(around) - min(around) > 1e-3


def test_dpo_against_a_reference_computed_by_hand(build, tokens):
    surfaces = LossSurfaceCallback(at_end=True, dimensions=1, **SMALL)
    kept = []

    def loss(model, batch):
        kept.append((batch, {name: each.clone() for name, each in model.state_dict().items()}))
        return torch.zeros(())

    trainer = build("dpo", max_steps=2)
    spy = LossSurfaceCallback(at_end=True, dimensions=1, loss_fn=loss, **SMALL)
    trained(trainer, surfaces, spy)

    batch, center = kept[0]
    model = tiny_models.llama(tokens)
    ratios = []
    for state in (center, trainer.ref_model.state_dict()):
        model.load_state_dict(state)
        with torch.no_grad():
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        logs_of = logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])
        ratios.append((logs_of.squeeze(-1) * batch["completion_mask"][:, 1:]).sum(1))
    chosen, rejected = (ratios[0] - ratios[1]).chunk(2)
    expected = -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()
    assert surfaces.results[0].center["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"bf16": True}, marks=pytest.mark.full, id="bf16"),
        pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.full, id="checkpointing"),
        pytest.param({"lora": True, "max_grad_norm": 0.1}, id="lora"),
    ],
)
def test_a_plain_trainer_continues_bit_for_bit(tokens, tmp_path, settings):
    from peft import LoraConfig, get_peft_model

    has_lora = "lora" in settings
    results = []
    surfaces = LossSurfaceCallback(every=2, at_end=False, sharpness=True, **SMALL)
    for callbacks in ([], [surfaces]):
        seed()
        known = {name: value for name, value in settings.items() if name != "lora"}
        trainer = plain(tokens, tmp_path / "out", callbacks=callbacks, **known)
        if has_lora:
            torch.manual_seed(3)
            adapter = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
            trainer.model = trainer.model_wrapped = get_peft_model(trainer.model, adapter)
        trainer.train()
        results.append((weights(trainer.model), random_state(), trainer.loss_sums, logs(trainer)))

    assert results[0][:3] == results[1][:3]
    assert [row["grad_norm"] for row in results[0][3]] == [
        row["grad_norm"] for row in results[1][3]
    ]
    assert [each.step for each in surfaces.results] == [2, 4]
    if has_lora:
        assert surfaces.results[0].parameter_count == 2 * (2 * (16 + 16) + 2 * (16 + 8))


def test_a_resumed_training_continues_the_path(tokens, tmp_path, capsys):
    runs = []
    for is_resumed, is_broken in ((False, False), (True, False), (True, True)):
        checkpoint = tmp_path / "checkpoint-2"
        if is_broken:
            (checkpoint / FILE_NAME).write_bytes(b"no trajectory")
        path = TrajectoryCallback(every=1)
        curvature = SharpnessCallback(every=4, max_share=None, tolerance=0.1)
        saves = {"save_strategy": "steps", "save_steps": 2}
        trainer = plain(tokens, tmp_path, callbacks=[path, curvature], **saves)
        trainer.train(resume_from_checkpoint=str(checkpoint) if is_resumed else None)
        runs.append(path.results[0].runs[0])
        # Once at the end, for the rate of the last step: that of the step after it is 0.
        assert [each.step for each in curvature.results] == [4]
        assert curvature.results[0].learning_rate == logs(trainer)[-1]["learning_rate"] > 0

    whole, resumed, anew = runs
    assert resumed["steps"] == whole["steps"] == [0, 1, 2, 3, 4]
    # The loss of a step is logged after its end.
    assert whole["loss"] == [None, *(row["loss"] for row in logs(trainer))]
    assert resumed["loss"] == whole["loss"]
    for name in ("distance_travelled", "distance_to_initial"):
        assert resumed[name] == pytest.approx(whole[name], rel=0.1), name
    assert anew["steps"] == [2, 3, 4]
    assert "a new trajectory begins at step 2: " in capsys.readouterr().err


def test_results_are_stored_and_logged_with_the_monitored_run(build, recorded):
    from sentinel.store.artifact import current_run_directory

    surfaces = LossSurfaceCallback(every=3, sharpness=True, at_end=False, **SMALL)
    path = TrajectoryCallback(every=1)
    directories = []

    @sentinel.monitor(run="test", agent=False, strict=True)
    def train():
        directories.append(current_run_directory())
        trained(build("dpo"), surfaces, path)

    train()

    headers = list_artifacts(directories[0])
    assert {each["kind"] for each in headers} == {"loss_surface", "trajectory"}
    stored = next(each for each in headers if each["kind"] == "loss_surface")
    surface = load_artifact(directories[0], stored["id"])["data"]
    assert LossSurface.from_json(surface).center == surfaces.results[0].center
    assert stored["step"] == 3
    assert (
        column(recorded, "preconditioned_sharpness")
        == surfaces.results[0].sharpness["eigenvalues"][:1]
    )
    distances = column(recorded, "distance_to_reference")
    assert len(distances) == 4
    assert distances[0] == 0.0 < distances[1] < distances[3]
    assert path.results[0].runs[0]["steps"] == [0, 1, 2, 3]
    # The surface is a phase: it is no long step.
    phases = [r.attributes for r in recorded()[0] if "edge" in r.attributes]
    assert "insight" in {each["name"] for each in phases}
    # Neither losses nor steps of the surface are taken for those of the training.
    assert len(column(recorded, "loss")) == 3


def test_gradient_flow_needs_no_decorator(tokens, tmp_path, recorded):
    flow = GradientFlowCallback(every=1, run="test", agent=False, strict=True)

    plain(tokens, tmp_path / "out", callbacks=[flow]).train()

    assert current_session() is None
    layers = [each for each in recorded()[0] if each.event.value == "layers"]
    assert layers


@pytest.mark.swallows_errors
def test_an_error_is_said_once_and_the_training_goes_on(build, capsys):
    calls = []

    def broken(model, batch):
        calls.append(model.training)
        for parameter in model.parameters():
            parameter.data.zero_()
        raise RuntimeError("CUDA out of memory")

    results = []
    surfaces = LossSurfaceCallback(every=1, loss_fn=broken, **SMALL)
    for callbacks in ((), (surfaces,)):
        seed()
        results.append(trained(build("sft", max_steps=2), *callbacks))

    assert results[0] == results[1]
    assert len(calls) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sentinel")]
    assert len(said) == 2
    assert "out of memory" in said[1]
    assert "fewer weights" in said[1]
    assert "Training goes on" in said[1]


@pytest.mark.swallows_errors
def test_a_short_training_has_no_time_for_a_surface_and_says_so(build, capsys):
    surfaces = LossSurfaceCallback(max_share=1e-6)
    unknown = SharpnessCallback(parameters="*nope*")

    trained(build("sft", max_steps=2), surfaces, unknown)

    assert not surfaces.results
    said = capsys.readouterr().err
    # What can be known at the start is said there, with its own remedy.
    assert "no sharpness: ValueError: No parameter matches '*nope*'. Names are such as" in said
    assert "computable again" not in said
    assert "sentinel: loss surface of this training at the end, within 0% of its time." in said
    assert "no loss surface at step 2" in said
    assert "max_share=None" in said


def test_bad_settings_are_refused_at_once():
    with pytest.raises(TypeError, match="did you mean 'dimensions'"):
        LossSurfaceCallback(dimension=1)
    with pytest.raises(ValueError, match="nothing is due"):
        SharpnessCallback(at_end=False)
    with pytest.raises(ValueError, match="max_share"):
        LossSurfaceCallback(max_share=5)
    with pytest.raises(ValueError, match="every"):
        TrajectoryCallback(every=0)
    with pytest.raises(ValueError, match="snapshots=20"):
        LossSurfaceCallback(directions="pca")
    with pytest.raises(ValueError, match="batches"):
        SharpnessCallback(batches=0)
    with pytest.raises(sentinel.SettingsError):
        GradientFlowCallback(rum="x")
    with pytest.raises(sentinel.SettingsError, match="did you mean 'every'"):
        GradientFlowCallback(evry=3)


@pytest.mark.parametrize(
    "make",
    [LossSurfaceCallback, SharpnessCallback, TrajectoryCallback, partial(GradientFlowCallback)],
)
def test_callbacks_can_be_copied_and_pickled(make):
    callback = make()
    for each in (
        copy.copy(callback),
        copy.deepcopy(callback),
        pickle.loads(pickle.dumps(callback)),
    ):
        assert type(each) is type(callback)


RANKS = """
import json, os, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch
torch.set_num_threads(1)
import torch.distributed as dist
import tiny_models as tiny
from recording_trainers import plain
from side_effects import weights
from sentinel.insight.callbacks.transformers import LossSurfaceCallback

tokens, ends = tiny.tokenizer(), []
surfaces = LossSurfaceCallback(every=2, max_evaluations=9, arrows=False, max_share=0.9)
for callbacks in ([], [surfaces]):
    trainer = plain(tokens, "out", callbacks=callbacks, max_steps=4)
    trainer.train()
    ends.append((weights(trainer.model), trainer.losses))
assert str(ends[0]) == str(ends[1])
rank = dist.get_rank()
found = [(each.step, each.points) for each in surfaces.results]
Path(f"surfaces-{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.full
def test_two_ranks_compute_one_surface_of_both_batches(run_ranks, tmp_path):
    run_ranks(RANKS, frameworks=("transformers.trainer",))

    one, two = (json.loads(Path(tmp_path, f"surfaces-{rank}.json").read_text()) for rank in (0, 1))
    assert one == two
    assert one
