"""No tap ever waits for a device: what our code runs reads no value, and copies behind the queue.

Host tensors are taken for a device's here (`syncing.py`). What a real GPU does is for
`benchmarks/gpu.py`.
"""

import pytest
import torch
from support.fake_device import COPY, READ, Ops, added, pretended_device, waits
from support.training_loops import batch, column, loss_of, model, watched
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client.capture import grad_norm
from sentinel.client.session import current_session
from sentinel.model.record import Event


@pytest.fixture(autouse=True)
def measured_at_every_step(monkeypatch):
    """Our own gradient norm, whatever it costs here."""
    monkeypatch.setattr(grad_norm, "MAX_STEP_TIME_FRACTION", float("inf"))


def loop(body):
    """Runs `body(net, optimizer, x)` for three steps, the same ones each time."""

    def run():
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            body(net, optimizer, batch(step))

    return run


def plainly(net, optimizer, x):
    loss_of(net, x).on_backward()
    optimizer.step()


def clipped(net, optimizer, x):
    torch.autograd.on_backward([loss_of(net, x), loss_of(net, x)])
    clip_grad_norm_(net[0].parameters(), 0.1)
    clip_grad_norm_(net[2].parameters(), 0.1)
    optimizer.step()


def logged(net, optimizer, x):
    loss = loss_of(net, x)
    loss.on_backward()
    optimizer.step()
    sentinel.log({"loss": loss, "kl": loss.detach() * 2, "half": loss.bfloat16()}, step=1)
    sentinel.mark("eval", score=loss)
    session = current_session()
    if session is not None:
        session.recorder.log_from_framework({"loss": loss, "reward": loss}, 1)
        session.recorder.record_event(Event.EVAL, 1, {"eval_loss": loss})


def closed(net, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, x)
        loss.on_backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("body", [plainly, clipped, logged, closed])
def test_no_tap_waits_for_a_device(body, told):
    found = added(loop(body), watched)

    assert waits(found) == {}
    assert found["copy_"] > 0
    assert len(column(told, "loss")) >= 3
    assert len(column(told, "grad_norm")) == 3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("poison", [1.0, float("inf")])
def test_a_scaler_is_watched_without_a_wait(fused, poison):
    def run():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(net, batch(step)) * poison).on_backward()
            scaler.step(optimizer)
            scaler.update()

    found = added(run, watched)

    assert waits(found) == {}


def test_an_engine_hands_its_scalars_over_without_a_wait(told):
    def run():
        session = current_session()
        norm = torch.ones(1) * 3
        if session is not None:
            taps["loop"].step({"grad_norm": norm, "learning_rate": 0.5})

    taps = {}
    from sentinel.integrations import torch_loop

    with pytest.MonkeyPatch.context() as patch:
        attach = torch_loop.attach
        patch.setattr(torch_loop, "attach", lambda tap: (taps.update(loop=tap.loop), attach(tap)))
        found = added(run, watched)

    assert waits(found) == {}
    assert column(told, "grad_norm") == [3.0]


class OnMeta(Ops):
    """Lets a copy to the host pass, and says of what kind it was."""

    def __init__(self):
        super().__init__()
        self.sent = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "copy_" and args[1].is_meta and not args[0].is_meta:
            self.sent.add(self._word(func, args, kwargs or {}))
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_nothing_of_ours_touches_the_data_of_a_tensor_that_has_none():
    """On the meta device there is no value to read: whoever asks for one fails."""
    net = torch.nn.Linear(4, 1, device="meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    strictly = sentinel.monitor(run="test", agent=False, strict=True)
    with pretended_device("meta"), strictly, OnMeta() as operations:
        for step in range(3):
            loss = net(torch.ones(2, 4, device="meta")).pow(2).mean()
            loss.on_backward()
            if step:
                clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            sentinel.log({"loss": loss}, step=step)

    assert operations.sent == {"copy_"}


@pytest.mark.parametrize(
    "ask",
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
def test_whatever_would_wait_is_seen(ask):
    with Ops() as ops:
        ask(torch.tensor(1.0))

    assert [name for name in ops.seen if name.startswith((READ, COPY))] != []


def test_what_does_not_wait_is_not_taken_for_it():
    with Ops() as ops:
        torch.zeros(()).copy_(torch.tensor(1.0).detach().double(), non_blocking=True)
        torch._foreach_norm([torch.ones(3)])

    assert waits(ops.seen) == {}
