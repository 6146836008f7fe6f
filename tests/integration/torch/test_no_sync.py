"""No patch waits for a device: it reads no value and only copies without blocking.

Host tensors stand for device tensors here (`support.fake_device`); `benchmarks/gpu.py` measures a
real GPU.
"""

import pytest
import torch
from support.checked_trainings import (
    attention_without_the_mode,
    frozen_with_gradients_of_zero,
    initialized_again,
    no_adapter_used,
    norms_alone,
    reference_in_the_optimizer,
    reference_of_other_weights,
    schedule_of_epochs,
    weights_untied,
)
from support.fake_device import (
    COPY,
    READ,
    Ops,
    added_operations,
    pretended_device,
    waiting_operations,
)
from support.training_loops import batch, column, loss_of, model, monitored
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client.capture import grad_norm
from sentinel.client.session import current_session
from sentinel.model.record import Event


@pytest.fixture(autouse=True)
def measure_at_every_step(monkeypatch):
    """Measure the gradient norm at every step, whatever it costs."""
    monkeypatch.setattr(grad_norm, "MAX_STEP_TIME_FRACTION", float("inf"))


def loop(body):
    """Runs `body(net, optimizer, x)` for three steps, with the same batches each time."""

    def run():
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            body(net, optimizer, batch(step))

    return run


def plain(net, optimizer, x):
    loss_of(net, x).backward()
    optimizer.step()


def clipped(net, optimizer, x):
    torch.autograd.backward([loss_of(net, x), loss_of(net, x)])
    clip_grad_norm_(net[0].parameters(), 0.1)
    clip_grad_norm_(net[2].parameters(), 0.1)
    optimizer.step()


def logged(net, optimizer, x):
    loss = loss_of(net, x)
    loss.backward()
    optimizer.step()
    sentinel.log({"loss": loss, "kl": loss.detach() * 2, "half": loss.bfloat16()}, step=1)
    sentinel.mark("eval", score=loss)
    session = current_session()
    if session is not None:
        session.recorder.log_from_framework({"loss": loss, "reward": loss}, 1)
        session.recorder.record_event(Event.EVAL, 1, {"eval_loss": loss})


def with_closure(net, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, x)
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.fault("I2")
@pytest.mark.parametrize("body", [plain, clipped, logged, with_closure])
def test_no_patch_waits_for_a_device(body, recorded):
    added = added_operations(loop(body), monitored)

    assert waiting_operations(added) == {}
    assert added["copy_"] > 0
    assert len(column(recorded, "loss")) >= 3
    assert len(column(recorded, "grad_norm")) == 3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("poison", [1.0, float("inf")])
def test_a_grad_scaler_is_observed_without_waiting(fused, poison):
    def run():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(net, batch(step)) * poison).backward()
            scaler.step(optimizer)
            scaler.update()

    added = added_operations(run, monitored)

    assert waiting_operations(added) == {}


@pytest.mark.parametrize("training", [initialized_again, frozen_with_gradients_of_zero])
def test_no_check_waits_for_a_device(training, recorded):
    added = added_operations(training, monitored)

    assert waiting_operations(added) == {}
    checks = {r.attributes["check"]: r.attributes for r in recorded()[0] if r.event is Event.CHECK}
    assert checks["weight_changes"]["problem"]
    assert checks["weights"]["problem"] == ""


@pytest.mark.parametrize(
    ("training", "check"),
    [
        (reference_of_other_weights, "first_loss"),
        (reference_in_the_optimizer, "weight_changes"),
        (weights_untied, "weight_changes"),
        (no_adapter_used, "weights"),
        (norms_alone, "weights"),
        (schedule_of_epochs, "schedule"),
        (attention_without_the_mode, "evaluation"),
    ],
)
def test_no_search_for_an_error_of_the_set_up_waits_for_a_device(training, check, recorded):
    added = added_operations(training, monitored)

    assert waiting_operations(added) == {}
    checks = [r.attributes for r in recorded()[0] if r.event is Event.CHECK]
    assert {each["check"] for each in checks if each["problem"]} == {check}


def test_scalars_of_an_engine_are_recorded_without_waiting(recorded):
    def run():
        session = current_session()
        norm = torch.ones(1) * 3
        if session is not None:
            loops["loop"].complete_step({"grad_norm": norm, "learning_rate": 0.5})

    loops = {}
    from sentinel.integrations import torch_loop

    with pytest.MonkeyPatch.context() as patch:
        attach = torch_loop.attach
        patch.setattr(
            torch_loop, "attach", lambda patcher: (loops.update(loop=patcher.loop), attach(patcher))
        )
        added = added_operations(run, monitored)

    assert waiting_operations(added) == {}
    assert column(recorded, "grad_norm") == [3.0]


class MetaOps(Ops):
    """Lets a copy to the host pass, and stores its kind."""

    def __init__(self):
        super().__init__()
        self.host_copies = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "copy_" and args[1].is_meta and not args[0].is_meta:
            self.host_copies.add(self._label(func, args, kwargs or {}))
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.fault("I2")
def test_no_value_of_a_meta_tensor_is_read():
    """On the meta device there is no value: reading one raises."""
    net = torch.nn.Linear(4, 1, device="meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    strict = sentinel.monitor(run="test", agent=False, strict=True)
    with pretended_device("meta"), strict, MetaOps() as operations:
        for step in range(3):
            loss = net(torch.ones(2, 4, device="meta")).pow(2).mean()
            loss.backward()
            if step:
                clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            sentinel.log({"loss": loss}, step=step)

    assert operations.host_copies == {"copy_"}


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.item(),
        float,
        lambda t: bool(t > 0),
        lambda t: t.nonzero(),
        lambda t: t.unique(),
        lambda t: torch.equal(t, t),
        lambda t: t.reshape(1)[t.reshape(1) > 0],
        lambda t: torch.zeros(()).copy_(t),
        lambda t: t.to("cpu", torch.float64, copy=True),
    ],
)
def test_every_waiting_operation_is_detected(read):
    with Ops() as ops:
        read(torch.tensor(1.0))

    assert [name for name in ops.seen if name.startswith((READ, COPY))] != []


def test_operations_that_do_not_wait_are_not_detected():
    with Ops() as ops:
        torch.zeros(()).copy_(torch.tensor(1.0).detach().double(), non_blocking=True)
        torch._foreach_norm([torch.ones(3)])

    assert waiting_operations(ops.seen) == {}
