"""Configuration in logs of real tools is recorded as the client records it."""

from __future__ import annotations

import json
import os

import pytest
from support.log_files import logged_config

from sentinel.model.record import Event
from sentinel.readers import csv, jsonl, tensorboard, trackio, trainer_state
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_config import read_config_file
from sentinel.signals.framework_config import parse_framework_config


def kinds(records):
    return [record.event.value for record in records]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["DPO", "GRPO", "KTO", "RLOO", "Reward", "SFT"])
def test_the_algorithm_is_known_from_the_arguments_of_trl(name):
    trl = pytest.importorskip("trl")
    args = getattr(trl, f"{name}Config")("out", use_cpu=True, bf16=False, report_to=[])
    parsed = parse_framework_config(args.to_dict())
    assert (parsed["framework"], parsed["algorithm"]) == ("trl", name.lower())
    assert parsed["learning_rate"] == args.learning_rate


def test_arguments_without_an_algorithm_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments("out", use_cpu=True, report_to=[], max_steps=9)
    parsed = parse_framework_config(args.to_dict())
    assert (parsed["framework"], parsed.get("algorithm"), parsed["max_steps"]) == (
        "transformers",
        None,
        9,
    )


def test_the_configuration_of_verl_is_parsed():
    parsed = parse_framework_config(
        {
            "actor_rollout_ref": {
                "actor": {"optim": {"lr": 1e-6}, "use_kl_loss": True, "kl_loss_coef": 0.001},
                "model": {"path": "/models/Qwen2.5"},
            },
            "algorithm": {"adv_estimator": "grpo"},
            "trainer": {"save_freq": 20, "total_training_steps": 300, "nnodes": [1]},
        }
    )
    assert parsed == {
        "framework": "verl",
        "algorithm": "grpo",
        "learning_rate": 1e-6,
        "use_kl_loss": "true",
        "kl_loss_coef": 0.001,
        "beta": 0.001,
        "model": "Qwen2.5",
        "save_freq": 20,
        "save_steps": 20,
        "max_steps": 300,
    }


@pytest.mark.parametrize(
    ("setting", "parsed"),
    [
        ("owner/model", "owner/model"), ("gpt2", "gpt2"), ("/data/models/mine", "mine"),
        ("./mine", "mine"), ("~/mine", "mine"), (".", "."), ("./", "."), ("/", "/"),
    ],
)  # fmt: skip
def test_a_model_path_is_reduced_to_its_name(setting, parsed):
    assert parse_framework_config({"model": setting}) == {"model": parsed}


def test_step_counts_of_an_unknown_framework_are_ignored():
    """In a user's own script max_steps may be the steps of an episode."""
    parsed = parse_framework_config(
        {"lr": 0.1, "max_steps": 200, "save_steps": 3, "seed": 1, "secret": "x"}
    )
    assert parsed == {"learning_rate": 0.1, "seed": 1}


@pytest.mark.parametrize("begin", [1, 2])
def test_hparams_are_found_in_every_directory_of_the_writer(tmp_path, begin):
    pytest.importorskip("tensorboard")
    writing = pytest.importorskip("torch.utils.tensorboard")
    with writing.SummaryWriter(str(tmp_path / "run")) as writer:
        pairs = {"learning_rate": 0.25, "lr_scheduler_type": "linear"}
        writer.add_hparams(pairs, {"score": 1.0})
        for step in range(begin, 6):
            writer.add_scalar("train/loss", 1.0 / step, step)
    records = list(tensorboard.read(tmp_path / "run"))
    assert logged_config(records) == {"learning_rate": 0.25, "lr_scheduler_type": "linear"}
    assert [r.step for r in records if r.event is Event.STEP] == list(range(begin, 6))


ARGUMENTS = {"learning_rate": 0.5, "max_steps": 90, "save_steps": 7, "save_strategy": "steps"}
ARGUMENTS |= {"per_device_train_batch_size": 2, "lr_scheduler_type": "cosine"}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tensorboard", "trainer_state"])
@pytest.mark.parametrize("name", ["training_args.json", "args.json"])
def test_arguments_next_to_a_log_are_recorded(tmp_path, kind, name):
    from support.event_files import event, event_file

    (tmp_path / name).write_text(json.dumps(ARGUMENTS))
    source = {"jsonl": jsonl, "csv": csv, "tensorboard": tensorboard}.get(kind, trainer_state)
    path = tmp_path / "log"
    if kind == "tensorboard":
        event_file(tmp_path, event(1, "loss", 2.0))
        path = tmp_path
    elif kind == "trainer_state":
        (tmp_path / "checkpoint-1").mkdir()
        state = {"log_history": [{"step": 1, "loss": 2.0}], "max_steps": 90}
        (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
        path = tmp_path
    else:
        path.write_text('{"step": 1, "loss": 2.0}\n' if kind == "jsonl" else "step,loss\n1,2.0\n")
    records = list(source.read(path))
    assert kinds(records)[:3] == ["start", "metadata", "step"]
    parsed = logged_config(records)
    assert (parsed["learning_rate"], parsed["max_steps"], parsed["framework"]) == (
        0.5,
        90,
        "transformers",
    )
    assert parsed["save_steps"] == (7 if kind == "trainer_state" else "7")


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"a":' * 90_000, '{"x": "' + "y" * 2**20]
)
def test_unreadable_arguments_are_ignored(tmp_path, text):
    (tmp_path / "training_args.json").write_text(text)
    (tmp_path / "log").write_text('{"step": 1, "loss": 2.0}\n')
    assert kinds(jsonl.read(tmp_path / "log")) == ["start", "step"]


def test_a_line_of_settings_is_recorded_with_its_texts(tmp_path):
    lines = [
        {"event": "start", "framework": "trl", "algorithm": "dpo", "learning_rate": 1e-6},
        {"step": 1, "loss": 0.7},
        {"event": "metadata", "beta": 0.1, "loss_type": "sigmoid"},
    ]
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    start, _, last = jsonl.read(tmp_path / "log")
    assert (start.event, start.attributes["algorithm"]) == (Event.START, "dpo")
    assert (last.event, last.values["beta"], last.attributes["loss_type"]) == (
        Event.METADATA, 0.1, "sigmoid",
    )  # fmt: skip


def test_a_late_configuration_is_recorded_once_where_it_appears(tmp_path):
    from support.wandb_files import field, framed, row

    def config(**settings):
        items = (
            field(1, n.encode()) + field(16, json.dumps(v).encode()) for n, v in settings.items()
        )
        return field(5, b"".join(field(1, item) for item in items))

    path = tmp_path / "run-x.wandb"
    more = (config(beta=0.1), row(2, 2.0), config(beta=0.1), config(beta=0.2), row(3, 2.0))
    path.write_bytes(framed(row(1, 2.0), *more))
    records = list(open_log(path))
    assert kinds(records) == ["start", "step", "metadata", "step", "metadata", "step"]
    assert [r.values["beta"] for r in records if r.event is Event.METADATA] == [0.1, 0.2]


def test_settings_that_are_not_finite_are_omitted(tmp_path):
    huge = '{"learning_rate": 1' + "0" * 400 + ', "beta": NaN, "seed": 3}'
    (tmp_path / "args.json").write_text(huge)
    (tmp_path / "log").write_text('{"step": 1, "loss": 2.0}\n')
    assert logged_config(jsonl.read(tmp_path / "log")) == {"seed": 3.0}


def test_an_early_trackio_database_without_configs_is_read(tmp_path):
    import sqlite3
    from contextlib import closing

    path = tmp_path / "p.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table metrics(id, run_name, timestamp, step, metrics)")
        other.execute(
            "insert into metrics values(1, 'r', '2026-01-01T00:00:00', 1, '{\"loss\": 2}')"
        )
    assert kinds(trackio.read(path)) == ["start", "step"]


def test_a_named_pipe_next_to_a_log_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "training_args.json")
    (tmp_path / "args.json").write_text('{"learning_rate": 0.5}')

    assert read_config_file(tmp_path).metadata == {"learning_rate": 0.5}
