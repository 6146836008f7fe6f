"""The statistics of layers of real trainings: exact, unchanged training, no waiting, fails open."""

from __future__ import annotations

import copy
import gc
import weakref
from math import inf, isnan, nan, sqrt

import pytest
import torch
from support.fake_device import added_operations, waiting_operations
from support.gradient_flows import (
    GradientLog,
    every_step,
    histograms,
    layer_records,
    monitored,
    statistics,
)

import sentinel
from sentinel.client.capture import gradient_flow
from sentinel.client.session import current_session
from sentinel.model.record import Event

CLOSE = 1e-6


@pytest.fixture(autouse=True)
def at_every_step():
    torch.set_num_threads(1)
    with every_step():
        yield


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batch(step):
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(step))


def loss_of(model, x):
    return (model(x).tanh() - x.sum(1, keepdim=True)).pow(2).mean()


def train(model, make_optimizer, body, steps=6):
    """Train, and return the norms of the layers that autograd computed, by step."""
    log, expected = GradientLog(model), {}
    with monitored:
        optimizer = make_optimizer(model.parameters())
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            scale = body(model, optimizer, step)
            expected[step] = log.norms(scale or 1.0)
    return expected


def plain(model, optimizer, step):
    loss_of(model, batch(step)).backward()
    optimizer.step()


def accumulated(model, optimizer, step):
    for micro in range(3):
        (loss_of(model, batch(10 * step + micro)) / 3).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def by_value(model, optimizer, step):
    loss_of(model, batch(step)).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
    optimizer.step()


def norm_looked_at_between(model, optimizer, step):
    """The norm of an unfinished gradient is computed too, for a log."""
    for micro in range(2):
        loss_of(model, batch(10 * step + micro)).backward()
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def by_closure(model, optimizer, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        loss.backward()
        return loss

    optimizer.step(closure)


def by_clipping_closure(model, optimizer, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss

    optimizer.step(closure)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


@pytest.mark.parametrize(
    "body",
    [plain, accumulated, by_value, norm_looked_at_between, by_closure, by_clipping_closure],
)
def test_norms_equal_those_of_autograd_before_clipping(body, recorded):
    expected = train(net(), sgd, body)

    found = statistics(recorded()[0], "layer_grad_norm")

    # The optimizer that counts is known from its first step on.
    assert [*found] == [2, 3, 4, 5, 6]
    for step, norms in found.items():
        assert [*norms] == ["0", "2"]
        assert norms == pytest.approx(expected[step], rel=CLOSE)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_clipped", [False, True])
def test_gradients_are_those_after_unscaling(is_fused, is_clipped, recorded):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def body(model, optimizer, step):
        scale = scaler.get_scale()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch(step))
        scaler.scale(loss).backward()
        if is_clipped:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        return scale

    expected = train(net(), lambda p: torch.optim.AdamW(p, fused=is_fused), body)

    found = statistics(recorded()[0], "layer_grad_norm")
    assert [*found] == [2, 3, 4, 5, 6]
    for step, norms in found.items():
        assert norms == pytest.approx(expected[step], rel=CLOSE)


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_step_that_the_scaler_skips_is_left_out(is_fused, recorded):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def body(model, optimizer, step):
        loss = loss_of(model, batch(step)) * (float("inf") if step == 4 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    train(net(), lambda p: torch.optim.AdamW(p, fused=is_fused), body)

    found = statistics(recorded()[0], "layer_grad_norm")
    assert all(norm < 100.0 for norms in found.values() for norm in norms.values())
    # A fused optimizer counts the step, another one does not.
    assert [*found] == ([2, 3, 5, 6] if is_fused else [2, 3, 4, 5])


def test_the_other_statistics_are_those_of_the_gradient_and_the_update(recorded):
    model, last, seen = net(), {}, {}

    def body(model, optimizer, step):
        before = [p.detach().clone() for p in model[0].parameters()]
        loss_of(model, batch(step)).backward()
        model[0].weight.grad[:2] = 0.0
        grad = torch.cat([p.grad.flatten() for p in model[0].parameters()])
        optimizer.step()
        update = torch.cat(
            [(p - b).flatten() for p, b in zip(model[0].parameters(), before, strict=True)]
        )
        weights = torch.cat([b.flatten() for b in before])
        seen[step] = {
            "layer_grad_zero_share": float((grad == 0).float().mean()),
            "layer_update_ratio": float(update.detach().norm() / weights.norm()),
            "layer_grad_cosine": float(
                torch.cosine_similarity(grad, last.get("grad", grad), dim=0)
            ),
        }
        last["grad"] = grad.clone()

    train(model, lambda p: torch.optim.AdamW(p, lr=0.01), body)

    records = recorded()[0]
    for name in ("layer_grad_zero_share", "layer_update_ratio", "layer_grad_cosine"):
        found = statistics(records, name)
        # The first measurement has no gradient before it.
        for step in range(3, 7):
            assert found[step]["0"] == pytest.approx(seen[step][name], rel=1e-4), (name, step)
    assert isnan(statistics(records, "layer_grad_cosine")[2]["0"])


def test_histograms_count_the_elements_by_powers_of_two(recorded):
    layer = torch.nn.Linear(8, 1, bias=False)
    values = torch.tensor([[0.0, 0.25, -0.3, 0.5, 0.9, 1.0, -3.0, 1e-30]])

    with monitored:
        optimizer = sgd(layer.parameters())
        for _ in range(3):
            layer.weight.grad = values.clone()
            optimizer.step()

    (counts,) = histograms(layer_records(recorded()[0])[3]).values()
    assert counts[0] == -48
    assert counts[1] == 1
    assert counts[-4:] == [2, 2, 1, 1]
    assert sum(counts[1:]) == 7


def test_the_noise_scale_of_a_known_noise_is_found(recorded):
    """Gradients of a vector with |G|² = 4 and noise of tr(Σ) = 12 per batch."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(1200))
    true = torch.full((1200,), 2.0 / sqrt(1200.0))

    with monitored:
        optimizer = torch.optim.SGD([weight], lr=1e-6)
        for _ in range(60):
            weight.grad = true + 0.1 * torch.randn(1200)
            optimizer.step()

    found = statistics(recorded()[0], "layer_noise_scale")
    assert [*found.values()][-1] == {"parameter0": pytest.approx(3.0, rel=0.15)}
    assert isnan(found[3]["parameter0"])


def test_training_is_bit_identical_and_nothing_is_left_behind():
    results = []
    for watched in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with monitored if watched else torch.enable_grad():
            for step in range(6):
                optimizer.zero_grad()
                accumulated(model, optimizer, step)
        results.append((copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()))
    (plain_state, plain_random), (watched_state, watched_random) = results

    assert torch.equal(plain_random, watched_random)
    for at, state in plain_state["state"].items():
        for name, value in state.items():
            assert torch.equal(value, watched_state["state"][at][name])
    assert torch.nn.utils.clip_grad_value_.__module__ == "torch.nn.utils.clip_grad"


def test_nothing_waits_for_a_device(recorded):
    def loop():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            accumulated(model, optimizer, step)

    found = added_operations(loop, monitored)

    assert waiting_operations(found) == {}
    assert len(statistics(recorded()[0], "layer_grad_norm")) == 5


def test_clipping_another_optimizers_gradients_says_nothing(recorded):
    """Those of the model may still be scaled when a critic is clipped first."""
    critic = torch.nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    critic_optimizer = sgd(critic.parameters())

    def body(model, optimizer, step):
        critic_optimizer.zero_grad()
        scaler.scale(loss_of(model, batch(step)) + loss_of(critic, batch(step))).backward()
        for each, owner in ((critic_optimizer, critic), (optimizer, model)):
            scaler.unscale_(each)
            torch.nn.utils.clip_grad_value_(owner.parameters(), 1e-3)
            torch.nn.utils.clip_grad_norm_(owner.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.step(critic_optimizer)
        scaler.update()
        return 1024.0

    expected = train(net(), sgd, body)

    found = statistics(recorded()[0], "layer_grad_norm")
    assert [*found] == [2, 3, 4, 5, 6]
    for step, norms in found.items():
        assert norms == pytest.approx(expected[step], rel=CLOSE)


def test_a_model_that_the_trainer_drops_is_freed():
    """A sweep in one run needs the memory of each model for the next."""
    with monitored:
        model = net()
        assert gradient_flow.enable(model)
        optimizer = sgd(model.parameters())
        for step in range(4):
            plain(model, optimizer, step)
        dropped = [weakref.ref(each) for each in (model, model[0].weight, model[0].weight.grad)]
        del model, optimizer
        gc.collect()

        assert [each() for each in dropped] == [None] * 3


def test_off_it_is_not_there():
    with sentinel.monitor(run="test", agent=False):
        assert current_session().loop.gradient_flow is None


def errors(headers):
    return headers()[0].errors


@pytest.mark.swallows_errors
def test_an_error_switches_it_off_and_training_goes_on(
    recorded, reported_metadata, headers, monkeypatch
):
    def broken(*_, **__):
        raise RuntimeError("broken")

    with monitored:
        model = net()
        optimizer = sgd(model.parameters())
        for step in range(6):
            plain(model, optimizer, step)
            if step == 2:
                monkeypatch.setattr(gradient_flow.Layers, "capture", broken)

    assert reported_metadata()[0]["patch/gradient_flow"] == "off: RuntimeError in before_step"
    assert errors(headers) == 1
    assert [*statistics(recorded()[0], "layer_grad_norm")] == [2]
    steps = [each for each in recorded()[0] if each.event is Event.STEP]
    assert [each.values["optimizer_steps"] for each in steps] == [1, 2, 3, 4, 5, 6]
    assert all("loss" in each.values for each in steps)


def test_unusual_gradients_are_left_out_and_the_others_measured(recorded):
    table = torch.nn.Embedding(10, 4, sparse=True)
    turned = torch.nn.Parameter(torch.ones(6, dtype=torch.complex64))
    unused = torch.nn.Linear(3, 3)
    permuted = torch.nn.Parameter(torch.randn(6, 4).t())
    model = torch.nn.Module()
    model.table, model.unused, model.layer = table, unused, torch.nn.Linear(4, 1)
    model.turned, model.permuted, model.empty = turned, permuted, torch.nn.Parameter(torch.ones(0))
    log, expected = GradientLog(model, lambda name: name.split(".")[0]), {}

    with monitored:
        optimizer = sgd(model.parameters())
        for step in range(1, 4):
            optimizer.zero_grad()
            x = model.layer(table(torch.tensor([1, 1, 2]))).sum()
            (x + turned.abs().sum() + (permuted**2).sum() + model.empty.sum()).backward()
            optimizer.step()
            expected[step] = log.norms() if step > 1 else {}
            log.gradients.pop("table.weight")

    norms = statistics(recorded()[0], "layer_grad_norm")[3]
    assert {*norms} == {"unused", "layer", "turned", "permuted", "empty"}
    for layer in ("layer", "turned", "permuted"):
        assert norms[layer] == pytest.approx(expected[3][layer], rel=CLOSE)
    assert all(isnan(norms[layer]) for layer in ("unused", "empty"))


def test_gradients_on_the_meta_device_are_left_out(recorded):
    with monitored:
        parameter = torch.nn.Parameter(torch.ones(3, device="meta"))
        optimizer = sgd([parameter])
        for _ in range(3):
            parameter.grad = torch.ones(3, device="meta")
            optimizer.step()

    assert statistics(recorded()[0], "layer_grad_norm") == {}


def test_parameters_that_change_are_grouped_again(recorded, monkeypatch):
    monkeypatch.setattr(gradient_flow, "PLAN_AGAIN_STEPS", 2)
    with monitored:
        model = net()
        optimizer = sgd(model.parameters())
        for step in range(30):
            if step == 5:
                model[0].bias.requires_grad_(requires_grad=False)
                model[0].bias.grad = None
            if step == 10:
                model[2].weight.data = torch.randn(1, 8, dtype=torch.float64)[:, :8].float()
            if step == 15:
                model.append(torch.nn.Linear(1, 1))
                optimizer = sgd(model.parameters())
            if step == 20:
                model[0].weight.data = torch.randn(8, 4)
                model[2].weight.data, model[2].weight.grad = torch.randn(1, 8), None
            optimizer.zero_grad()
            plain(model, optimizer, step)

    found = statistics(recorded()[0], "layer_grad_norm")
    assert [*found[4]] == ["0", "2"]
    assert [*found[30]] == ["0", "2", "3"]
    assert all(not isnan(norm) for norms in found.values() for norm in norms.values())


def test_ten_thousand_parameters_are_grouped_and_their_sample_is_bounded(recorded):
    model = torch.nn.ModuleList(
        torch.nn.ParameterList(torch.ones(2) for _ in range(10)) for _ in range(1000)
    )
    with monitored:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.ones(2)
            optimizer.step()
        flow = current_session().loop.gradient_flow
        (device,) = flow._layers.devices
        assert device._last.numel() <= 2048 * 128

    norms = statistics(recorded()[0], "layer_grad_norm")[3]
    assert len(norms) == 125
    assert next(iter(norms)) == "0 … 7"
    assert next(iter(norms.values())) == pytest.approx(sqrt(8 * 10 * 2))


def test_a_float64_model_and_half_precision_are_measured(recorded):
    for dtype in (torch.float64, torch.bfloat16):
        expected = train(net().to(dtype), sgd, lambda m, o, s, d=dtype: _typed(m, o, s, d))
    # The last of the two runs.
    found = statistics(recorded()[0], "layer_grad_norm")
    assert found[6] == pytest.approx(expected[6], rel=1e-3)


def _typed(model, optimizer, step, dtype):
    (model(batch(step).to(dtype)) ** 2).mean().backward()
    optimizer.step()


def test_a_gradient_that_is_not_finite_is_reported_as_it_is(recorded):
    def body(model, optimizer, step):
        loss_of(model, batch(step)).backward()
        model[2].weight.grad[0, 0] = nan if step == 4 else 1.0
        optimizer.step()
        with torch.no_grad():
            model[2].weight.nan_to_num_()

    train(net(), sgd, body)

    norms = statistics(recorded()[0], "layer_grad_norm")
    assert norms[4]["2"] == inf
    assert norms[4]["0"] > 0.0
    assert norms[6]["2"] > 0.0
    assert statistics(recorded()[0], "layer_grad_zero_share")[4]["2"] == 0.0


def test_compiled_models_and_optimizers_are_measured(recorded):
    model = net()
    compiled = torch.compile(model, backend="eager")
    log, expected = GradientLog(model), {}
    with monitored:
        optimizer = sgd(compiled.parameters())
        for step in range(1, 5):
            optimizer.zero_grad()
            loss_of(compiled, batch(step)).backward()
            optimizer.step()
            expected[step] = log.norms()

    found = statistics(recorded()[0], "layer_grad_norm")
    assert found[4] == pytest.approx(expected[4], rel=CLOSE)


def test_nothing_is_done_while_a_graph_is_captured(recorded, monkeypatch):
    for module in ("loop", "gradient_flow", "device_copy"):
        monkeypatch.setattr(f"sentinel.client.capture.{module}.is_capturing_graph", lambda: True)

    train(net(), sgd, plain)

    assert statistics(recorded()[0], "layer_grad_norm") == {}
