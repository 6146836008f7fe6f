"""The values captured from a plain PyTorch loop are correct."""

from itertools import pairwise

import pytest
import torch
from support.training_loops import batch, column, loss_of, model, monitored, norm, steps
from torch.nn.utils import clip_grad_norm_

from sentinel.client.capture import grad_norm
from sentinel.client.capture.grad_norm import CHEAP_STRIDE_STEPS, GradNorm


def test_a_plain_loop_records_loss_norm_learning_rate_and_steps(recorded):
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses, norms = [], []

    @monitored
    def train():
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(net, batch(step))
            loss.backward()
            losses.append(loss.item())
            norms.append(norm(net.parameters()))
            clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            schedule.step()

    train()

    assert column(recorded, "loss") == losses
    assert column(recorded, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert column(recorded, "learning_rate") == pytest.approx([0.01 * 0.5**n for n in range(5)])
    assert column(recorded, "optimizer_steps") == [1, 2, 3, 4, 5]
    assert [record.step for record in steps(recorded)] == [1, 2, 3, 4, 5]
    assert [record.step_index for record in steps(recorded)] == [1, 2, 3, 4, 5]
    assert len(column(recorded, "step_time")) == 4
    assert all(0 < seconds < 60 for seconds in column(recorded, "step_time"))


def test_accumulated_backward_passes_are_one_step(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        totals = []
        for step in range(3):
            parts = [loss_of(net, batch(10 * step + part)) / 4 for part in range(4)]
            for part in parts:
                part.backward()
            totals.append(sum(part.item() for part in parts))
            optimizer.step()
            optimizer.zero_grad()

    assert column(recorded, "loss") == pytest.approx(totals, rel=1e-12)


def test_without_clipping_the_norm_is_measured_often_enough(recorded, monkeypatch):
    monkeypatch.setattr(grad_norm, "CHEAP_COST_SECONDS", float("inf"))  # however slow the machine
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    norms = {}
    with monitored:
        for step in range(1, 41):
            optimizer.zero_grad()
            loss_of(net, batch(step)).backward()
            norms[step] = norm(net.parameters())
            optimizer.step()

    measured = {r.step: r.values["grad_norm"] for r in steps(recorded) if "grad_norm" in r.values}
    assert {1, 2} <= measured.keys()
    assert max(after - before for before, after in pairwise([*measured, 41])) <= CHEAP_STRIDE_STEPS
    assert measured == pytest.approx({step: norms[step] for step in measured}, rel=1e-5)


def test_the_norm_stays_within_its_time_budget():
    """1 % of a 100 ms step is 1 ms: a norm of 5 ms is due every fifth step."""
    grad_norm_state = GradNorm()
    grad_norm_state.costs_seconds.extend([0.5, 0.005, 0.005])

    assert sum(grad_norm_state.is_due(0.1) for _ in range(100)) == 20


def test_a_stride_that_changes_from_step_to_step_still_measures_often_enough():
    """The stride depends on two noisy times and may differ at every step."""
    grad_norm_state = GradNorm()
    grad_norm_state.costs_seconds.extend([0.0005, 0.0005, 0.0005])
    step_times = [0.05 / stride for stride in (7, 10, 9, 8, 10, 7, 9) * 20]

    measured = [step for step, seconds in enumerate(step_times) if grad_norm_state.is_due(seconds)]

    assert max(after - before for before, after in pairwise(measured)) <= CHEAP_STRIDE_STEPS


def test_only_euclidean_clipping_is_used(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        loss_of(net, batch(0)).backward()
        expected = norm(net.parameters())
        clip_grad_norm_(net.parameters(), 1e9, norm_type=1.0)
        clip_grad_norm_(net.parameters(), 1e9, float("inf"))
        optimizer.step()

    assert column(recorded, "grad_norm") == pytest.approx([expected], rel=1e-5)


def test_norms_of_groups_clipped_separately_are_combined(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        loss_of(net, batch(0)).backward()
        expected = norm(net.parameters())
        clip_grad_norm_(net[0].parameters(), 0.01)
        clip_grad_norm_(net[2].parameters(), 0.01)
        optimizer.step()

    assert column(recorded, "grad_norm") == pytest.approx([expected], rel=1e-5)


def test_a_scaled_loss_is_recorded_unscaled(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses, norms = [], []
    with monitored:
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(net, batch(step))
            scaler.scale(loss).backward()
            losses.append(loss.item())
            norms.append(norm(net.parameters()) / 1024.0)
            scaler.step(optimizer)
            scaler.update()

    assert column(recorded, "loss") == losses
    assert column(recorded, "grad_norm")[:2] == pytest.approx(norms[:2], rel=1e-5)


def test_a_step_skipped_by_the_scaler_is_not_counted(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with monitored:
        for value in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(loss_of(net, batch(0)) * value).backward()
            scaler.step(optimizer)
            scaler.update()

    assert column(recorded, "optimizer_steps") == [1, 2]


def test_a_scaled_loss_without_its_raw_loss_is_not_recorded(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with monitored:
        (scaler.scale(loss_of(net, batch(0))) / 4).backward()
        scaler.step(optimizer)

    assert column(recorded, "loss") == []
    assert column(recorded, "optimizer_steps") == [1]


def test_nan_is_recorded_before_any_filter(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        (loss_of(net, batch(0)) * float("nan")).backward()
        optimizer.step()

    assert [value != value for value in column(recorded, "loss")] == [True]  # noqa: PLR0124
    assert [value != value for value in column(recorded, "grad_norm")] == [True]  # noqa: PLR0124


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_model_has_one_backward_pass(recorded, reentrant):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        x = batch(0).requires_grad_()
        out = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()

    assert column(recorded, "loss") == [loss.item()]


def test_backward_through_autograd_is_captured(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        first, second = loss_of(net, batch(0)), loss_of(net, batch(1))
        torch.autograd.backward([first, second])
        optimizer.step()

    assert column(recorded, "loss") == pytest.approx([first.item() + second.item()])


def test_a_backward_pass_with_explicit_gradients_is_not_a_loss(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        out = net(batch(0))
        out.backward(torch.ones_like(out))
        optimizer.step()

    assert column(recorded, "loss") == []
    assert column(recorded, "optimizer_steps") == [1]
