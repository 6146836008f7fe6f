"""A simulated DeepSpeed engine: fp16 overflows, which CPUs do not have, and other versions."""

import sys
from math import isnan
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support.recorders import RecordedRank

from sentinel.client.capture.loop import OTHER_STEPS_MARGIN, TrainingLoop
from sentinel.client.capture.patcher import Patcher
from sentinel.integrations import deepspeed, torch_loop
from sentinel.model.record import Event

SCALE = 65536.0


class Inner:
    """An inner optimizer of the engine."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]
        self.cur_scale, self._global_grad_norm = SCALE, 0.0


def always(answer):
    return lambda _: answer


def engine_class():
    class DeepSpeedEngine:
        def __init__(self, module):
            self.module, self.global_steps, self.skipped_steps, self.micro = module, 0, 0, 0
            self.basic_optimizer = self.optimizer = Inner(module.parameters())
            self.local_rank, self._global_grad_norm = 0, None

        gradient_accumulation_steps = always(2)
        gradient_clipping = always(1.0)
        zero_optimization = fp16_enabled = always(True)
        zero_optimization_stage = always(2)
        bfloat16_enabled = always(False)
        train_batch_size = always(8)
        train_micro_batch_size_per_gpu = always(4)

        def get_lr(self):
            return [group["lr"] for group in self.optimizer.param_groups]

        def scale(self, loss):
            return loss * SCALE

        def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
            (loss / (2 if scale_wrt_gas else 1) * SCALE).backward()

        def _take_model_step(self, norm):
            self._global_grad_norm = norm
            if norm == float("inf"):
                self.skipped_steps += 1
                self.optimizer.cur_scale /= 2
            self.global_steps += 1

        def step(self, norm=1.0):
            self.micro += 1
            if self.micro % 2 == 0:
                self._take_model_step(norm)

        def save_checkpoint(self, save_dir, tag=None):
            return True

    return DeepSpeedEngine


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


@pytest.fixture
def attached(rank, monkeypatch):
    """Attaches the integration to an engine class."""
    patchers = []

    def attach(owner):
        module = ModuleType(deepspeed.FRAMEWORK)
        module.DeepSpeedEngine, module.clip_grad_norm_ = owner, lambda **_: None
        monkeypatch.setitem(sys.modules, deepspeed.FRAMEWORK, module)
        monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(__version__="0.19.8"))
        monkeypatch.delitem(sys.modules, "deepspeed.monitor.monitor", raising=False)
        loop = TrainingLoop(rank.recorder)
        for name, integration in (("torch_loop", torch_loop), ("deepspeed", deepspeed)):
            patchers.append(Patcher(name, rank.recorder, loop))
            patchers[-1].attach(integration.attach)

    yield attach
    for patcher in patchers:
        patcher.undo()


def steps(rank):
    return [r for r in rank.records() if r.event is Event.STEP]


def loss_of(engine, x):
    return engine.module(torch.full((1, 2), x)).sum()


def test_an_overflow_is_a_skipped_step_with_its_loss_scale(rank, attached):
    attached(owner := engine_class())
    engine = owner(torch.nn.Linear(2, 1))
    losses = []
    for norm in (3.0, float("inf"), 2.0):
        for x in (1.0, 2.0):
            loss = loss_of(engine, x)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step(norm)
    rank.recorder.close({})

    values = [r.values for r in steps(rank)]

    assert [v["loss"] for v in values] == [sum(losses[at : at + 2]) / 2 for at in (0, 2, 4)]
    assert [v["grad_norm"] for v in values] == [3.0, float("inf"), 2.0]
    assert [v["loss_scale"] for v in values] == [SCALE, SCALE / 2, SCALE / 2]
    assert [v["skipped_steps"] for v in values] == [0, 1, 1]
    assert [v["learning_rate"] for v in values] == [0.1] * 3


def test_the_loss_is_read_before_the_trainer_scales_it(rank, attached):
    attached(owner := engine_class())
    engine = owner(torch.nn.Linear(2, 1))
    losses = []
    for x in (1.0, 2.0):
        loss = loss_of(engine, x)
        losses.append(loss.item())
        engine.scale(loss).backward()
        engine.step()
    rank.recorder.close({})

    assert [r.values["loss"] for r in steps(rank)] == [sum(losses) / 2]


def test_a_norm_of_minus_one_is_nan(rank, attached):
    attached(owner := engine_class())
    engine = owner(torch.nn.Linear(2, 1))
    for norm in (-1.0, torch.tensor(-1.0), torch.tensor(2.5)):
        for x in (1.0, 2.0):
            engine.backward(loss_of(engine, x))
            engine.step(norm)
    rank.recorder.close({})

    first, second, third = (r.values["grad_norm"] for r in steps(rank))

    assert isnan(first)
    assert isnan(second)
    assert third == 2.5


def test_an_engine_of_another_version_is_recorded_without_missing_parts(rank, attached):
    owner = engine_class()
    body = owner._take_model_step
    del owner._take_model_step, owner.scale

    def step(self, norm=1.0):
        self.micro += 1
        if self.micro % 2 == 0:
            body(self, norm)

    owner.step = step
    # Built before the run begins.
    engine = owner(torch.nn.Linear(2, 1))
    attached(owner)
    for x in (1.0, 2.0, 3.0, 4.0):
        engine.backward(loss_of(engine, x))
        engine.step(1.5)
    rank.recorder.close({})

    states = [
        r.attributes["patch/deepspeed"] for r in rank.records() if "patch/deepspeed" in r.attributes
    ]
    lacking = "DeepSpeedEngine.scale, DeepSpeedEngine._do_optimizer_sanity_check, MonitorMaster"
    assert states == [f"on, without {lacking}"]
    assert [r.values["grad_norm"] for r in steps(rank)] == [1.5, 1.5]
    assert [r.values["optimizer_steps"] for r in steps(rank)] == [1, 2]


@pytest.mark.swallows_errors
def test_a_disabled_integration_leaves_steps_to_the_inner_optimizers(rank, attached):
    """Otherwise a healthy run would look stalled."""
    owner = engine_class()
    owner.get_lr = None
    engine = owner(torch.nn.Linear(2, 1))
    engine.basic_optimizer = torch.optim.SGD(engine.module.parameters(), lr=0.5)
    attached(owner)
    for x in (1.0, 2.0, 3.0, 4.0):
        for _ in range(2):
            engine.backward(loss_of(engine, x))
            engine.step()
        engine.basic_optimizer.step()
    rank.recorder.close({})

    values = [r.values for r in steps(rank)]
    states = [
        r.attributes["patch/deepspeed"] for r in rank.records() if "patch/deepspeed" in r.attributes
    ]

    assert states[-1] == "off: TypeError in before_step"
    # The engine's own, until the third error.
    assert [v.get("learning_rate") for v in values] == [None, None, 0.5, 0.5]


def test_the_larger_of_two_engines_defines_step_and_loss(rank, attached):
    attached(owner := engine_class())
    critic, actor = owner(torch.nn.Linear(2, 1)), owner(torch.nn.Linear(64, 1))
    losses = []
    for x in (1.0, 2.0, 3.0, 4.0):
        loss = actor.module(torch.full((1, 64), x)).sum()
        losses.append(loss.item())
        actor.backward(loss)
        for _ in range(3):
            # It also steps between two batches of the actor's step.
            critic.backward(loss_of(critic, x))
            critic.step(7.0)
        actor.step(3.0)
    rank.recorder.close({})

    values = [r.values for r in steps(rank)]

    assert [v["grad_norm"] for v in values] == [3.0, 3.0]
    assert [v["loss"] for v in values] == [sum(losses[:2]) / 2, sum(losses[2:]) / 2]
    assert [v["global_step"] for v in values] == [1, 2]


def test_an_engine_that_never_steps_is_not_waited_for(rank, attached):
    attached(owner := engine_class())
    idle, engine = owner(torch.nn.Linear(64, 1)), owner(torch.nn.Linear(2, 1))
    for _ in range(2 * (OTHER_STEPS_MARGIN + 3)):
        engine.backward(loss_of(engine, 1.0))
        engine.step(2.0)
    rank.recorder.close({})

    assert idle.global_steps == 0
    assert [r.values["grad_norm"] for r in steps(rank)] == [2.0] * 3
    assert all(r.values["loss"] for r in steps(rank)[1:])


def test_the_trainers_step_precedes_the_engines(rank, attached):
    attached(owner := engine_class())
    engine = owner(torch.nn.Linear(2, 1))
    for step in (500, 501):
        for x in (1.0, 2.0):
            engine.backward(loss_of(engine, x))
            engine.step()
        rank.recorder.log({"kl": 0.5}, step)
    engine.save_checkpoint("/saves")
    rank.recorder.close({})

    assert [r.step for r in steps(rank)] == [500, 501]
    assert [r.values["global_step"] for r in steps(rank)] == [500, 501]
    save = next(r for r in rank.records() if r.event is Event.SAVE)
    assert (save.step, save.attributes["path"]) == (501, "/saves/global_step2")
