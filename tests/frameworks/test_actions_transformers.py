"""Transformers: the Trainer executes commands at their step, on every rank."""

import json
from functools import partial

import pytest
from command_sender import send_command
from requirements import need

import sentinel

need("transformers", "accelerate", "datasets")
from recording_trainers import of_trl, plain
from transformers import TrainerCallback

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


class CommandSender(TrainerCallback):
    """Sends a command at the end of step 2, due at step 5."""

    def __init__(self, *actions):
        self.actions = actions

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            send_command(*self.actions, ready_from_index=2, due_step_index=5)


class Resets(TrainerCallback):
    """A user callback that prevents checkpoints."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = False


@pytest.fixture
def build(tokens, tmp_path):
    return partial(plain, tokens, tmp_path / "out", max_steps=8)


def checkpoints(tmp_path):
    return sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("actions", "saved", "ended"),
    [
        (("checkpoint",), ["checkpoint-5"], 8),
        (("stop",), [], 5),
        (("checkpoint", "stop"), ["checkpoint-5"], 5),
    ],
    ids=["checkpoint", "stop", "both"],
)
def test_a_trainer_saves_and_stops_at_the_due_step(build, tmp_path, actions, saved, ended):
    trainer = build(callbacks=[CommandSender(*actions)])
    with sentinel.monitor(run="test", agent=False, strict=True):
        result = trainer.train()
        assert sentinel.requested() == frozenset()

    assert checkpoints(tmp_path) == saved
    assert result.global_step == trainer.state.global_step == ended
    assert "train_loss" in trainer.state.log_history[-1]
    for name in saved:
        state = json.loads((tmp_path / "out" / name / "trainer_state.json").read_text())
        assert state["global_step"] == 5


def test_the_execution_is_recorded(build, reported_metadata):
    with sentinel.monitor(run="test", agent=False, strict=True):
        build(callbacks=[CommandSender("checkpoint", "stop")]).train()

    assert (
        reported_metadata()[0]["on_critical"] == "checkpoint, stop at step 5, for run/kl_blowup#1"
    )


def test_the_users_function_is_called_at_the_end_of_the_step(build):
    calls = []
    trainer = build(callbacks=[CommandSender("call", "stop")])

    def call(context):
        calls.append((context.step, trainer.state.global_step, context.actions, context.cause))

    with sentinel.monitor(run="test", agent=False, strict=True, on_critical=["stop", call]):
        trainer.train()

    assert calls == [(5, 5, {"stop"}, "The rate")]
    assert trainer.state.global_step == 5


def test_a_user_callback_overrides_the_command(build, tmp_path):
    trainer = build(callbacks=[CommandSender("checkpoint"), Resets()])
    with sentinel.monitor(run="test", agent=False, strict=True):
        trainer.train()

    assert checkpoints(tmp_path) == []


def test_a_grpo_trainer_executes_commands(tokens, tiny_path, tmp_path):
    pytest.importorskip("trl")
    trainer = of_trl("grpo", tokens, tiny_path, tmp_path / "out", max_steps=7)
    trainer.add_callback(CommandSender("checkpoint", "stop"))
    with sentinel.monitor(run="test", agent=False, strict=True):
        trainer.train()

    assert checkpoints(tmp_path) == ["checkpoint-5"]
    assert trainer.state.global_step == 5


RANKS = """
import gc, json, os, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch.distributed as dist
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
import sentinel, tiny_models as tiny
from command_sender import send_command

tokens = tiny.tokenizer()
rank = int(os.environ["RANK"])
calls = []

class CommandSender(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if rank == 1 and state.global_step == 3:
            due = int(os.environ["DUE"])
            send_command(
                "checkpoint", "stop", "call", ready_from_index=3, due_step_index=due
            )

args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, max_steps=10, use_cpu=True, report_to=[],
    disable_tqdm=True, seed=1, save_strategy="no",
)
with sentinel.monitor(
    run="run", agent=False, strict=True, on_critical=lambda asked: calls.append(asked.step)
):
    trainer = Trainer(
        tiny.llama(tokens), args, train_dataset=Dataset.from_list(tiny.rows(tokens)),
        callbacks=[CommandSender()],
    )
    trainer.train()
    result = [trainer.state.global_step, calls]
    Path(f"result-{rank}.json").write_text(json.dumps(result))
dist.barrier()
del trainer
gc.collect()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("step_index", "ended", "saved"), [(6, 6, ["checkpoint-6"]), (3, 10, [])])
def test_two_ranks_act_at_the_same_step_or_neither_does(
    run_ranks, tmp_path, step_index, ended, saved
):
    """A command due at the step at whose end it is sent is too late for both ranks."""
    run_ranks(RANKS, frameworks=("transformers.trainer",), DUE=str(step_index))
    results = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1)]

    assert results == [[ended, [6] if saved else []]] * 2
    assert checkpoints(tmp_path) == saved
    assert all(
        (tmp_path / "out" / name / f"rng_state_{n}.pth").exists() for name in saved for n in (0, 1)
    )
