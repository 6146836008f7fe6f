"""Unusual calls of PyTorch and frameworks that a patch must not change."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.fake_device import pretended_device
from support.training_loops import batch, column, loss_of, model, monitored, norm
from torch.nn.utils import clip_grad, clip_grad_norm_

import sentinel
from sentinel.client.capture import loss as root_loss
from sentinel.client.capture.device_copy import cuda_queue
from sentinel.model.record import Event


def test_roots_given_as_a_generator_still_get_their_gradient(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        losses = [loss_of(net, batch(step)) for step in range(2)]
        torch.autograd.backward(loss for loss in losses)
        assert all(p.grad is not None for p in net.parameters())
        optimizer.step()

    assert column(recorded, "loss") == [sum(loss.item() for loss in losses)]


def test_roots_given_by_keyword_are_captured(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        loss = loss_of(net, batch(0))
        torch.autograd.backward(tensors=[loss])
        optimizer.step()

    assert column(recorded, "loss") == [loss.item()]


def test_older_clipping_with_keyword_parameters_is_captured(recorded, monkeypatch):
    """PyTorch before 2.6 has no separate function for the norm."""

    def clip(parameters, max_norm, norm_type=2.0):
        grads = [p.grad for p in parameters]
        total = torch.linalg.vector_norm(torch.stack([g.norm(norm_type) for g in grads]))
        for grad in grads:
            grad.mul_(min(1.0, max_norm / (total.item() + 1e-6)))
        return total

    clip.__name__ = "clip_grad_norm_"
    monkeypatch.delattr(clip_grad, "_get_total_norm")
    monkeypatch.setattr(clip_grad, "clip_grad_norm_", clip)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    truths = []
    with monitored:
        for step in range(2):
            optimizer.zero_grad()
            loss_of(net, batch(step)).backward()
            truths.append(norm(net.parameters()))
            torch.nn.utils.clip_grad_norm_(parameters=net.parameters(), max_norm=0.01)
            optimizer.step()

    assert column(recorded, "grad_norm") == pytest.approx(truths, rel=1e-5)


def test_clipped_gradients_are_not_kept_alive(recorded):
    """The first gradient usually belongs to the embedding, the largest parameter."""
    critic, net = model(), model()
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    optimizer_of_net = torch.optim.SGD(
        [*net.parameters(), torch.nn.Parameter(torch.zeros(99))], lr=0.01
    )
    gradients = []
    with monitored:
        for step in range(4):
            for each, optimizer in ((net, optimizer_of_net), (critic, critic_optimizer)):
                loss_of(each, batch(step)).backward()
                clip_grad_norm_(each.parameters(), 1.0)
                if step < 2:
                    optimizer.step()
                gradients.append(weakref.ref(each[0].weight.grad))
                optimizer.zero_grad()
        gc.collect()
        assert [ref() for ref in gradients] == [None] * len(gradients)

    assert len(column(recorded, "grad_norm")) == 2


def test_a_failed_step_repeated_with_another_optimizer_is_recorded(recorded):
    """For example when memory runs out at the first step and a smaller batch is tried."""
    net = model()

    class Full(torch.optim.SGD):
        def step(self, closure=None):
            raise MemoryError

    full = Full(net.parameters(), lr=0.01)
    losses = []
    with monitored:
        loss_of(net, batch(9)).backward()
        with pytest.raises(MemoryError):
            full.step()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(2):
                losses.append(loss_of(net, batch(2 * step + part)))
                losses[-1].backward()
            optimizer.step()

    assert column(recorded, "optimizer_steps") == [1, 2]
    sums = [losses[0].item() + losses[1].item(), losses[2].item() + losses[3].item()]
    assert column(recorded, "loss") == pytest.approx(sums)
    assert len(column(recorded, "grad_norm")) == 2
    del full


def test_complex_parameters_have_a_gradient_norm(recorded):
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64) * (1 + 1j))
    optimizer, truths = torch.optim.SGD([weight], lr=0.01), []
    with monitored:
        for _ in range(4):
            optimizer.zero_grad()
            (weight * weight.conj()).real.sum().backward()
            truths.append(float(weight.grad.abs().pow(2).sum() ** 0.5))
            optimizer.step()

    assert len(column(recorded, "loss")) == 4
    assert column(recorded, "grad_norm")[:2] == pytest.approx(truths[:2])


def test_the_loss_of_discarded_gradients_is_not_recorded(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    with monitored:
        for step in range(4):
            loss = loss_of(net, batch(step))
            loss.backward()
            if step == 2:
                # The batch is discarded.
                optimizer.zero_grad()
                continue
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()

    assert column(recorded, "loss") == losses


def test_losses_on_two_devices_are_summed_on_the_first_device(monkeypatch):
    class Scalar:
        def __init__(self, device, value):
            self.device, self.value = device, value

        def float(self):
            return self

        def to(self, device, non_blocking):
            assert non_blocking
            return Scalar(device, self.value)

        def __add__(self, other):
            assert self.device == other.device
            return Scalar(self.device, self.value + other.value)

        def __radd__(self, total):
            return Scalar(self.device, total + self.value)

    monkeypatch.setattr(root_loss, "number_or_reason", lambda value: value)
    loss = root_loss.StepLoss()
    loss.add([Scalar("cuda:0", 1.0), Scalar("cuda:1", 2.0)])

    total = loss.pop()
    assert (total.device, total.value) == ("cuda:0", 3.0)


def test_the_host_buffer_ignores_the_default_device_of_the_user(monkeypatch):
    used = {}

    def empty(*shape, **options):
        used.update(options)
        return [None] * shape[0]

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", object)
    cuda_queue(SimpleNamespace(type="cuda"))

    assert used["device"] == "cpu"


def test_a_norm_that_cannot_be_computed_loses_no_other_value(recorded, headers, monkeypatch):
    def out_of_memory(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "_foreach_norm", out_of_memory)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)
    with monitored:
        for step in range(5):
            loss_of(net, batch(step)).backward()
            optimizer.step()
        assert headers()[0].errors == 0

    assert len(column(recorded, "loss")) == 5
    assert column(recorded, "grad_norm") == []


def test_evaluation_values_on_a_device_are_recorded_as_an_evaluation(recorded):
    score = torch.tensor(0.5)
    with pretended_device(), monitored:
        sentinel.mark("eval", 7, score=score, samples=3, path="held-out")
        score.fill_(9.0)
        sentinel.log({"reward": 1.0}, 8)

    records = [r for r in recorded()[0] if "score" in r.values or "samples" in r.values]
    assert [(r.event, r.step) for r in records] == [(Event.EVAL, 7)] * 2
    assert records[0].attributes == {"path": "held-out"}
    assert records[1].values == {"score": 0.5}


def test_a_failed_backward_pass_adds_nothing_to_the_loss(recorded):
    """For example when memory runs out for the longest batch and it is skipped."""

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(*_):
            raise torch.OutOfMemoryError

    net, losses = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        for step in range(4):
            loss = loss_of(net, batch(step))
            if step in {0, 2}:
                with pytest.raises(torch.OutOfMemoryError):
                    Full.apply(loss).backward()
                continue
            loss.backward()
            losses.append(loss.item())
        with pytest.raises(torch.OutOfMemoryError):
            # This pass has no loss, so there is nothing to subtract.
            Full.apply(net(batch(9))).backward(torch.ones(16, 1))
        optimizer.step()

    assert column(recorded, "loss") == [pytest.approx(sum(losses))]
