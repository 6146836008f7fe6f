"""Habits of training loops that can mislead a monitor."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from support.training_loops import batch, column, loss_of, model, monitored, norm, steps
from torch.nn.utils import clip_grad_norm_

import sentinel


def scaled_steps(optimizer, net, values):
    """One step per value, with the loss multiplied by it, under a GradScaler with scale 8."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=10**6)
    losses = []
    for step, value in enumerate(values):
        optimizer.zero_grad()
        loss = loss_of(net, batch(step)) * value
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def test_a_skipped_step_is_reported_with_the_scale_and_without_its_loss(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        losses = scaled_steps(optimizer, net, [1.0, float("inf"), 1.0])

    assert column(recorded, "optimizer_steps") == [1, 2]
    assert column(recorded, "loss") == [losses[0], losses[2]]
    assert column(recorded, "loss_scale") == [8.0, 4.0]
    assert column(recorded, "skipped_steps") == [0.0, 1.0, 1.0]


def test_a_step_skipped_by_a_fused_optimizer_is_counted_as_skipped(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    with monitored:
        losses = scaled_steps(optimizer, net, [1.0, float("inf"), 1.0])

    assert column(recorded, "loss")[::2] == losses[::2]
    assert column(recorded, "loss_scale") == [8.0, 8.0, 4.0]
    assert column(recorded, "skipped_steps") == [0.0, 0.0, 1.0]


def test_a_disabled_scaler_reports_no_scale(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with monitored:
        loss = loss_of(net, batch(0))
        (scaler.scale(loss) / 4).backward()
        scaler.step(optimizer)
        scaler.update()

    assert column(recorded, "loss") == [loss.item() / 4]
    assert (column(recorded, "loss_scale"), column(recorded, "skipped_steps")) == ([], [])


def test_the_fsdp_scaler_reports_the_unscaled_loss(recorded):
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with monitored:
            scaler = ShardedGradScaler("cpu", init_scale=8.0, process_group=dist.group.WORLD)
            loss = loss_of(net, batch(0))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    finally:
        dist.destroy_process_group()

    assert column(recorded, "loss") == [loss.item()]
    assert column(recorded, "loss_scale") == [8.0]


def test_the_norm_of_unscaled_and_clipped_gradients_is_correct(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with monitored:
        scaler.scale(loss_of(net, batch(0))).backward()
        scaler.unscale_(optimizer)
        expected = norm(net.parameters())
        clip_grad_norm_(net.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()

    assert column(recorded, "grad_norm") == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("change", ["mul", "copy"])
def test_a_loss_changed_in_place_after_backward_keeps_its_value(recorded, change):
    """`all_reduce(loss)` changes it, for a mean over ranks."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        loss = loss_of(net, batch(0))
        expected = loss.item()
        loss.backward()
        with torch.no_grad():
            if change == "mul":
                loss.mul_(100)
            else:
                loss.copy_(torch.tensor(-1.0))
        optimizer.step()

    assert column(recorded, "loss") == [expected]


def test_a_gradient_penalty_is_one_backward_pass(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        x = batch(0).requires_grad_()
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss = loss_of(net, x) + grad.pow(2).mean()
        loss.backward()
        expected = loss.item()
        optimizer.step()

    assert column(recorded, "loss") == [expected]


def test_clipping_still_raises_on_a_non_finite_norm(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        (loss_of(net, batch(0)) * float("nan")).backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.zero_grad()
        loss_of(net, batch(1)).backward()
        expected = norm(net.parameters())
        clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()

    assert column(recorded, "grad_norm") == pytest.approx([expected], rel=1e-5)


def test_a_pipeline_stage_has_steps_and_a_norm_but_no_loss(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    norms = []
    with monitored:
        for step in range(3):
            optimizer.zero_grad()
            out = net(batch(step))
            torch.autograd.backward([out], [torch.ones_like(out)])
            norms.append(norm(net.parameters()))
            clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

    assert column(recorded, "loss") == []
    assert column(recorded, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert column(recorded, "optimizer_steps") == [1, 2, 3]


@pytest.mark.fault("T10")
def test_a_step_captured_into_a_graph_is_ignored(recorded, monkeypatch):
    """Every replay of the graph would repeat our computation."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        with monkeypatch.context() as patch:
            patch.setattr("sentinel.client.capture.loop.is_capturing_graph", lambda: True)
            loss_of(net, batch(0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        loss = loss_of(net, batch(1))
        loss.backward()
        optimizer.step()

    assert column(recorded, "loss") == [loss.item()]
    assert column(recorded, "optimizer_steps") == [1]


def test_pytorch_still_rejects_a_root_that_is_not_a_scalar(recorded):
    net = model()
    with monitored, pytest.raises(RuntimeError, match="scalar"):
        net(batch(0)).backward()


@pytest.mark.fault("T10")
@pytest.mark.filterwarnings("ignore")
def test_a_backward_pass_inside_a_compiled_graph_is_supported(recorded):
    """With `trace_autograd_ops` the compiler inlines it; the steps are still recorded."""
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this PyTorch cannot trace backward passes")
    torch._dynamo.reset()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    @torch.compile(backend="eager", fullgraph=True)
    def gradients(x):
        loss = loss_of(net, x)
        loss.backward()
        return loss.detach()

    with monitored, torch._dynamo.config.patch(trace_autograd_ops=True):
        for step in range(3):
            optimizer.zero_grad()
            gradients(batch(step))
            optimizer.step()

    assert column(recorded, "optimizer_steps") == [1, 2, 3]


def test_a_resumed_run_is_another_attempt_with_continued_step_numbers(recorded, monkeypatch):
    monkeypatch.setenv("SENTINEL_RUN_ID", "resumed")
    for first in (1, 4):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with sentinel.monitor(agent=False):
            for step in range(first, first + 3):
                optimizer.zero_grad()
                loss_of(net, batch(step)).backward()
                optimizer.step()
                sentinel.log({"kl": 0.1}, step=step)

    resumed = [r for r in steps(recorded) if "kl" in r.values]
    assert [(r.attempt, r.step, r.step_index) for r in resumed] == [
        (0, 1, 1),
        (0, 2, 2),
        (0, 3, 3),
        (1, 4, 1),
        (1, 5, 2),
        (1, 6, 3),
    ]


def test_nested_decorators_record_each_step_once(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    @monitored
    def epoch():
        for step in range(2):
            optimizer.zero_grad()
            loss_of(net, batch(step)).backward()
            optimizer.step()

    @monitored
    def train():
        epoch()
        epoch()

    train()

    assert column(recorded, "optimizer_steps") == [1, 2, 3, 4]
    assert len(column(recorded, "loss")) == 4


def test_a_backward_pass_in_another_thread_belongs_to_the_same_step(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    expected = []
    with monitored:

        def half():
            loss = loss_of(net, batch(0)) / 2
            expected.append(loss.item())
            loss.backward()

        half()
        thread = threading.Thread(target=half)
        thread.start()
        thread.join()
        optimizer.step()

    assert column(recorded, "loss") == pytest.approx([sum(expected)])


@pytest.mark.parametrize("capturing", [False, True])
def test_graph_capture_is_detected_on_an_initialised_device(monkeypatch, capturing):
    from sentinel.client.capture.device_copy import is_capturing_graph

    device = SimpleNamespace(
        is_initialized=lambda: True, is_current_stream_capturing=lambda: capturing
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", device)

    assert is_capturing_graph() is capturing
