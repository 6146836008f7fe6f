"""verl's installed Tracking and file logger, and its processes as Ray starts them."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import need

need("torch", "verl", "ray", "tensordict", "omegaconf", "orjson", "tensorboard")

import numpy as np
import torch

import sentinel
from sentinel.client import session
from sentinel.client.arguments import MonitorArguments
from sentinel.client.auto_session import end_auto_session
from sentinel.integrations.callbacks import verl as plugin
from sentinel.model.record import Event
from sentinel.readers import verl as source

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)

CONFIG = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "kl_ctrl": {"kl_coef": 0.1}},
    "actor_rollout_ref": {
        "model": {"path": "/models/tiny"},
        "actor": {
            "use_kl_loss": True,
            "kl_loss_coef": 0.001,
            "kl_loss_type": "low_var_kl",
            "optim": {"lr": 1e-6},
        },
        "rollout": {"n": 8, "name": "vllm"},
    },
    "trainer": {
        "save_freq": 2,
        "total_training_steps": None,
        "default_local_dir": "/ckpt",
        "wandb_proxy": "http://user:secret@proxy",
    },
}

ROWS = [
    {"val-core/gsm8k/acc": 0.25},
    {"actor/ppo_kl": 0.001, "critic/score/mean": np.float32(0.5), "training/global_step": 1},
    {"actor/ppo_kl": math.nan, "critic/score/mean": 0.75, "timing_s/save_checkpoint": 2.5},
    {"actor/ppo_kl": math.inf, "critic/score/mean": torch.tensor(1.0), "text": "none"},
]


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """The class `Tracking`, with its files in the test's directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "verl.jsonl"))
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tb"))
    from verl.utils import tracking

    before = {name: vars(tracking.Tracking)[name] for name in ("__init__", "log")}
    yield tracking.Tracking
    assert {name: vars(tracking.Tracking)[name] for name in before} == before


def plain(row):
    """Values as verl's encoder writes them."""
    return {k: v for k, v in row.items() if not isinstance(v, torch.Tensor | str)}


def test_verl_logs_are_recorded_once_under_verls_step_and_keys(
    tracking, recorded, reported_metadata
):
    with watched:
        tracker = tracking("maths", "first", ["tensorboard"], CONFIG)
        for step, row in enumerate(ROWS):
            tracker.log({k: v for k, v in row.items() if k != "text"}, step=step)
        tracker.finish()

    records = recorded()[0]
    steps = [r for r in records if r.event is Event.STEP]
    assert [r.step for r in steps] == [1, 2, 3]
    assert [r.values["critic/score/mean"] for r in steps] == [0.5, 0.75, 1.0]
    kl = [r.values["actor/ppo_kl"] for r in steps]
    assert kl[0] == 0.001
    assert math.isnan(kl[1])
    assert math.isinf(kl[2])
    saves = [(r.step, r.attributes["path"]) for r in records if r.event is Event.SAVE]
    assert saves == [(2, "/ckpt/global_step_2")]
    evals = [(r.step, r.values["val-core/gsm8k/acc"]) for r in records if r.event is Event.EVAL]
    assert evals == [(0, 0.25)]
    known = reported_metadata()[0]
    assert known["patch/verl"] == "on"
    expected = {
        "framework": "verl",
        "algorithm": "grpo",
        "model": "tiny",
        "experiment": "first",
        "beta": 0.001,
        "kl_loss_type": "low_var_kl",
        "use_kl_loss": "true",
        "learning_rate": 1e-6,
        "num_generations": 8,
        "save_steps": 2,
    }
    assert {name: known[name] for name in expected} == expected
    assert "max_steps" not in known
    assert not any("secret" in str(value) for value in known.values())


def test_its_log_file_holds_the_recorded_values(tracking, recorded, tmp_path):
    with watched:
        tracker = tracking("maths", "first", "file", CONFIG)
        for step, row in enumerate(ROWS):
            tracker.log(plain(row), step=step)
        tracker.finish()

    path = tmp_path / "verl.jsonl"
    assert source.can_read(path, path.read_bytes()[:4096])
    read = [r for r in source.read(path) if r.event is not Event.START]
    recorded_records = [r for r in recorded()[0] if r.event in {Event.STEP, Event.SAVE, Event.EVAL}]
    assert [(r.event, r.step) for r in read] == [(r.event, r.step) for r in recorded_records]
    assert math.isnan(read[2].values["kl_old"])


def test_a_restart_starts_the_file_over(tracking, tmp_path):
    for step in (1, 7):
        tracker = tracking("maths", "first", "file")
        tracker.log({"actor/ppo_kl": 0.5}, step=step)
        tracker.finish()

    assert [r.step for r in source.read(tmp_path / "verl.jsonl")] == [7, 7]


def test_logs_without_numbers_are_ignored(tracking, recorded):
    with watched:
        tracker = tracking("maths", "first", [])
        tracker.log(None, step=1)
        tracker.log({"text": "x"}, step=2)

    assert [r.step for r in recorded()[0] if r.event is Event.STEP] == [2]


def test_the_driver_is_monitored_from_the_creation_of_its_trackers(
    tracking, recorded, reported_metadata
):
    plugin.start_on_training(MonitorArguments(run="test", agent=False, strict=True))
    try:
        assert session.current_session() is None
        tracker = tracking("maths", "first", "file", config=CONFIG)
        assert session.current_session() is not None
        tracker.log({"actor/ppo_kl": 0.5}, step=1)
        tracker.finish()
    finally:
        end_auto_session()

    assert [dict(r.values)["actor/ppo_kl"] for r in recorded()[0] if r.event is Event.STEP] == [0.5]
    assert reported_metadata()[0]["algorithm"] == "grpo"


def test_an_active_session_is_not_replaced(tracking, recorded):
    verl_init = vars(tracking)["__init__"]
    plugin.start_on_training(MonitorArguments(run="other"))
    with watched:
        tracking("maths", "first", "file").log({"actor/ppo_kl": 0.5}, step=1)
    tracking("maths", "first", "file")
    assert session.current_session() is None
    # The run restored what it patched, so the tracker does nothing any more.
    assert vars(tracking)["__init__"].__wrapped__ is verl_init
    tracking.__init__ = verl_init

    assert [r.step for r in recorded()[0] if r.event is Event.STEP] == [1]


def test_no_process_is_monitored_unless_requested(monkeypatch):
    assert not plugin.is_monitoring_requested()
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "other,sentinel.integrations.callbacks.verl")
    assert plugin.is_monitoring_requested()
    monkeypatch.setenv("SENTINEL_OFF", "1")
    assert not plugin.is_monitoring_requested()
    monkeypatch.delenv("SENTINEL_OFF")
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES")
    monkeypatch.setenv("SENTINEL_RUN_ID", "named")
    assert plugin.is_monitoring_requested()


def test_the_entry_point_is_declared():
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'[project.entry-points."verl.plugins"]\nsentinel = "{plugin.__name__}"\n' in declared


ACTOR = """
import json
import warnings

warnings.filterwarnings("ignore")

from sentinel.client.spawn import AgentSupervisor

AgentSupervisor.start = lambda self: None

import torch
import verl

from sentinel.client import session

assert session.current_session() is None
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = (layer(torch.ones(4, 2)) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
identity = session.current_session().identity
print("RESULT " + json.dumps([losses, identity.run, identity.rank,
      identity.world_size, identity.local_world_size]))
"""


def test_a_ray_worker_is_monitored_from_its_first_backward_pass(tmp_path, recorded):
    path = tmp_path / "actor.py"
    path.write_text(ACTOR)
    verls = {
        "VERL_USE_EXTERNAL_MODULES": "sentinel.integrations.callbacks.verl",
        "SENTINEL_RUN_ID": "maths",
        "WG_PREFIX": "abc",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "RAY_LOCAL_WORLD_SIZE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **verls},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]

    line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    losses, *place = json.loads(line.removeprefix("RESULT "))
    assert place == ["maths-ranks", 1, 2, 1]
    steps = [r for r in recorded()[1] if r.event is Event.STEP]
    assert [r.values["loss"] for r in steps] == pytest.approx(losses)
