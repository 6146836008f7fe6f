"""Transformers: what a Trainer does is recorded at its step, whatever it logs."""

import math
import re
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from requirements import need
from side_effects import patches, random_state, seed, weights
from support.training_loops import column, steps

import sentinel
from sentinel.model.record import Event

need("transformers", "accelerate", "datasets")
import tiny_models
import torch
import transformers
from recording_trainers import logged, plain
from safetensors import torch as safetensors

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)
OURS = ("transformers.trainer", "transformers.trainer_callback", "transformers.generation.utils")


@pytest.fixture
def build(tokens, tmp_path):
    return partial(plain, tokens, tmp_path / "out")


def phases(read_records):
    return [
        (record.attributes["name"], record.attributes["edge"])
        for record in read_records()[0]
        if record.event is Event.PHASE
    ]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_every_step_has_its_number_its_loss_and_the_norm_before_clipping(build, recorded, bf16):
    trainer = build(bf16=bf16)

    watched(trainer.train)()

    assert column(recorded, "loss") == pytest.approx(trainer.loss_sums, rel=1e-6)
    assert column(recorded, "grad_norm") == pytest.approx(list(trainer.norms.values()), rel=1e-5)
    assert min(column(recorded, "grad_norm")) > 0.5
    assert column(recorded, "learning_rate") == logged(trainer, "learning_rate")
    assert column(recorded, "logged_loss") == logged(trainer, "loss")
    assert column(recorded, "logged_loss") == pytest.approx(trainer.loss_sums, rel=1e-5)
    assert column(recorded, "logged_grad_norm") == logged(trainer, "grad_norm")
    assert [(r.step, r.step_index) for r in steps(recorded)] == [
        (n, n) for n in (1, 1, 2, 2, 3, 3, 4, 4)
    ]
    assert column(recorded, "global_step") == [r.step for r in steps(recorded)]


def test_steps_between_two_logs_are_recorded(build, recorded):
    trainer = build(logging_steps=2)

    watched(trainer.train)()

    raw = column(recorded, "loss")
    assert raw == pytest.approx(trainer.loss_sums, rel=1e-6)
    assert [r.step for r in steps(recorded) if "loss" in r.values] == [1, 2, 3, 4]
    assert column(recorded, "logged_loss") == pytest.approx(
        [sum(raw[:2]) / 2, sum(raw[2:]) / 2], rel=1e-5
    )


def test_a_nan_loss_is_recorded_where_the_trainer_logs_zero(build, recorded):
    trainer = build(bad={2, 3}, max_steps=3)

    watched(trainer.train)()

    raw, shown = column(recorded, "loss"), column(recorded, "logged_loss")
    assert [math.isnan(loss) for loss in raw] == [False, True, True]
    assert shown[1] == logged(trainer, "loss")[1] == 0.0
    assert math.isnan(column(recorded, "grad_norm")[1])


def test_evaluations_and_checkpoints_are_not_steps(build, recorded):
    trainer = build(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)

    watched(trainer.train)()

    evals = [record for record in recorded()[0] if record.event is Event.EVAL]
    saves = [record for record in recorded()[0] if record.event is Event.SAVE]
    assert [record.values["eval_loss"] for record in evals] == logged(trainer, "eval_loss")
    assert [record.step for record in evals] == [2, 4]
    assert [record.step for record in saves] == [2, 4]
    assert [Path(save.attributes["path"]).name for save in saves] == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    assert all(Path(save.attributes["path"], "trainer_state.json").is_file() for save in saves)
    once = [("eval", "begin"), ("eval", "end"), ("save", "begin"), ("save", "end")]
    assert phases(recorded) == [*once, *once, ("after training", "begin")]
    assert not any("eval_loss" in record.values for record in steps(recorded))


def test_the_configuration_is_recorded(build, recorded, reported_metadata):
    trainer = build(save_strategy="steps", save_steps=3)

    watched(trainer.train)()

    known = reported_metadata()[0]
    assert known["framework"] == "transformers"
    assert known["framework_version"] == known["transformers"]
    assert "algorithm" not in known
    assert (known["max_steps"], known["save_steps"]) == (4.0, 3.0)
    assert known["gradient_accumulation_steps"] == 2.0
    assert known["logging_nan_inf_filter"] == "true"
    assert known["model"] == "llama"
    assert known["patch/transformers"] == known["patch/accelerate"] == "on"
    assert known["train_loss"] == pytest.approx(sum(trainer.loss_sums) / 4, rel=1e-5)
    assert "resumed_from" not in known
    assert known["dataset_rows"] == len(trainer.train_dataset)
    assert re.fullmatch("[0-9a-f]{16}", known["dataset_fingerprint"])


def test_checkpoints_by_epoch_have_no_save_interval(build, reported_metadata):
    watched(build(save_strategy="epoch").train)()

    assert "save_steps" not in reported_metadata()[0]


def test_a_resumed_training_continues_at_its_step(build, recorded, reported_metadata):
    first = build(save_strategy="steps", save_steps=2)
    first.train()
    again = build(save_strategy="steps", save_steps=2)

    watched(again.train)(resume_from_checkpoint=str(Path(again.args.output_dir, "checkpoint-2")))

    assert [r.step for r in steps(recorded) if "loss" in r.values] == [3, 4]
    assert column(recorded, "loss") == pytest.approx(first.loss_sums[2:], rel=1e-6)
    assert reported_metadata()[0]["resumed_from"] == 2.0


def test_a_second_training_in_one_run_is_marked(build, recorded):
    @watched
    def train():
        # The first one stays, and its optimizer with it.
        first = build(max_steps=2)
        first.evaluate()
        first.train()
        build(max_steps=1).train()

    train()

    assert [r.step for r in steps(recorded) if "loss" in r.values] == [1, 2, 1]
    assert [
        r.values.get("restarted_after_step") for r in steps(recorded) if "loss" in r.values
    ] == [
        None,
        None,
        0.0,
    ]
    assert "step_time" not in [r.values for r in steps(recorded) if "loss" in r.values][-1]
    after = [("after training", "begin"), ("after training", "end")]
    assert phases(recorded) == [("eval", "begin"), ("eval", "end"), *after, after[0]]


def test_monitoring_changes_no_result_and_leaves_no_patch(build):
    results = []
    before = patches("torch", "torch.nn.utils.clip_grad", *OURS, "accelerate.accelerator")
    for watch in (False, True):
        seed()
        trainer = build(max_steps=3, eval_strategy="steps", eval_steps=2)
        (watched(trainer.train) if watch else trainer.train)()
        results.append(
            (trainer.loss_sums, logged(trainer, "loss"), weights(trainer.model), random_state())
        )

    assert results[0] == results[1]
    assert patches("torch", "torch.nn.utils.clip_grad", *OURS, "accelerate.accelerator") == before


def test_a_failed_evaluation_ends_its_phase(build, recorded):
    from transformers import Trainer

    class Failing(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            raise MemoryError

    trainer = build(cls=Failing)

    @watched
    def train():
        with pytest.raises(MemoryError):
            trainer.evaluate()

    train()

    assert phases(recorded) == [("eval", "begin"), ("eval", "end")]


def test_a_custom_evaluation_loop_is_a_phase(recorded):
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

    import_module("transformers.trainer")  # The patches are attached when this is imported.
    handler = CallbackHandler([], None, None, None, None)
    callback_arguments = (
        TrainingArguments(output_dir="out", use_cpu=True),
        TrainerState(),
        TrainerControl(),
    )

    @watched
    def train():
        for _ in range(3):
            handler.on_prediction_step(*callback_arguments)
        handler.on_evaluate(*callback_arguments, metrics={})
        handler.on_log(*callback_arguments, logs={"kl": None, "note": "text", "reward": 0.5})

    train()

    assert phases(recorded) == [("prediction", "begin"), ("prediction", "end")]
    assert [dict(record.values) for record in steps(recorded)] == [
        {"reward": 0.5, "global_step": 0.0}
    ]


def test_nested_generation_is_timed_once(build, tokens, recorded):
    import torch
    from support.training_loops import batch

    model, inner = tiny_models.llama(tokens), tiny_models.llama(tokens)
    head = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    prompt = {"input_ids": torch.tensor([[5, 6]]), "max_new_tokens": 3, "do_sample": False}

    class Nested:
        def __call__(self, ids, scores):
            inner.generate(**prompt)
            return scores

    def step(*processors):
        with torch.no_grad():
            model.generate(**prompt, logits_processor=list(processors))
        head(batch(0)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    @watched
    def train():
        step()
        step(Nested())

    train()

    spent = [record.values for record in steps(recorded)]
    assert len(spent) == 2
    assert spent[0]["generation_time"] > 0
    assert 0 < spent[1]["generation_time"] <= spent[1]["step_time"]


@pytest.mark.parametrize(("prefix", "problem"), [("_orig_mod.", "not_loaded"), ("", "")])
def test_a_checkpoint_that_gives_the_model_no_weights_is_found(
    tokens, tmp_path, recorded, prefix, problem
):
    tiny_models.llama(tokens).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    saved = safetensors.load_file(path)
    renamed = {f"{prefix}{name}": each for name, each in saved.items()}
    safetensors.save_file(renamed, path, metadata={"format": "pt"})

    @watched
    def train():
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batch = torch.arange(8).reshape(1, 8)
        for _ in range(5):
            optimizer.zero_grad()
            model(batch, labels=batch).loss.backward()
            optimizer.step()

    train()

    found = {r.attributes["check"]: r.attributes for r in recorded()[0] if r.event is Event.CHECK}
    assert found["loaded_weights"]["problem"] == problem
