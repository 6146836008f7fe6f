"""Monitoring does not change a training run, and every patch is undone."""

from collections import Counter

import pytest
import torch
from support.training_loops import batch, column, loss_of, model, monitored
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client.session import current_session


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [True, False], ids=["whole step", "model"])
def test_a_compiled_loop_is_captured_and_compiles_to_the_same_graphs(recorded, whole):
    def run():
        torch._dynamo.reset()
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        counter = torch._dynamo.testing.CompileCounter()
        forward = net if whole else torch.compile(net, backend=counter)

        def step(x):
            optimizer.zero_grad()
            loss_of(forward, x).backward()
            clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

        step = torch.compile(step, backend=counter) if whole else step
        for turn in range(3):
            step(batch(turn))
        return counter.frame_count, counter.op_count

    import torch._dynamo.testing

    plain = run()
    with monitored:
        assert run() == plain

    assert column(recorded, "optimizer_steps") == [1, 2, 3]
    assert len(column(recorded, "loss")) == 3


def train_ten(net):
    """Ten steps; the losses as hexadecimal floats."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_of(net, batch(step))
        loss.backward()
        if step % 2:
            clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item().hex())
        sentinel.log({"loss": loss, "kl": 0.1}, step=step)
    return losses


def test_monitored_training_is_bit_identical():
    plain = train_ten(model())

    assert monitored(train_ten)(model()) == plain


def test_every_patch_is_undone():
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer as optim

    def patches():
        hooks = optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks
        return (
            torch.Tensor.backward,
            torch.autograd.backward,
            torch.amp.GradScaler.scale,
            torch.amp.GradScaler.step,
            clip_grad._get_total_norm,
            *map(len, hooks),
        )

    before = patches()
    with monitored:
        inside = patches()

    assert all(one is not other for one, other in zip(before[:5], inside[:5], strict=True))
    assert patches() == before


def test_later_patches_of_others_are_kept(monkeypatch):
    original = torch.Tensor.backward
    with monitored:
        patched = torch.Tensor.backward

        def other(self, *args, **kwargs):
            return patched(self, *args, **kwargs)

        torch.Tensor.backward = other
    try:
        assert torch.Tensor.backward is other
        weight = torch.ones(1, requires_grad=True)
        weight.sum().backward()
        assert weight.grad == 1
    finally:
        torch.Tensor.backward = original


@pytest.mark.swallows_errors
def test_a_failing_patch_does_not_affect_the_step(monkeypatch, headers):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    before = net[0].weight.detach().clone()
    with monitored:
        monkeypatch.setattr(current_session().recorder, "record_step", lambda *_: 1 / 0)
        loss_of(net, batch(0)).backward()
        optimizer.step()

    assert not torch.equal(net[0].weight, before)
    assert headers()[0].errors == 1


def test_patches_read_only_the_loss_and_the_norm_on_the_host():
    """One read of the loss and one of the norm per step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counts = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[str(func)] += 1
            return func(*args, **(kwargs or {}))

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def reads():
        counts.clear()
        with Count():
            loss_of(net, batch(0)).backward()
            clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
        return counts["aten._local_scalar_dense.default"]

    plain = reads()
    with monitored:
        assert reads() == plain + 2
