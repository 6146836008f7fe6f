"""Curvature: exact eigenvalues, limits of stability, and what happens at the limit."""

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import attention, functional

from sentinel.insight import Sharpness, sharpness
from sentinel.insight.measure.surface_error import SurfaceError

pytestmark = pytest.mark.usefixtures("one_thread")


def make_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)


def make_batch(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 4, generator=generator)
    return inputs.to(dtype), torch.randint(3, (32,), generator=generator)


def cross_entropy(model: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def exact_hessian(model: nn.Module, batch: Any) -> torch.Tensor:
    """The whole Hessian in float64, by the functional interface of PyTorch."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]
    flat = torch.cat([each.detach().double().reshape(-1) for each in model.parameters()])
    inputs, targets = batch[0].double(), batch[1]

    def loss(weights: torch.Tensor) -> torch.Tensor:
        parts = weights.split([shape.numel() for shape in shapes])
        named = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        outputs = torch.func.functional_call(model.double(), named, (inputs,))
        return functional.cross_entropy(outputs, targets)

    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        return torch.autograd.functional.hessian(loss, flat)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leading_eigenvalues_are_those_of_the_whole_hessian(dtype: torch.dtype) -> None:
    result = sharpness(make_net(dtype), cross_entropy, make_batch(dtype), k=3, trace_samples=200)

    exact = exact_hessian(make_net(dtype), make_batch(dtype))
    values = torch.linalg.eigvalsh(exact).flip(0)
    assert result.eigenvalues == pytest.approx(values[:3].tolist(), rel=0.01)
    assert result.trace == pytest.approx(exact.trace().item(), rel=0.1)
    assert result.evaluations > 200
    assert result.note == []


def test_several_batches_have_the_hessian_of_their_mean() -> None:
    inputs, targets = make_batch()
    parts = [(inputs[:8], targets[:8]), (inputs[8:], targets[8:])]

    result = sharpness(make_net(), cross_entropy, parts)

    exact = torch.linalg.eigvalsh(exact_hessian(make_net(), (inputs, targets)))
    assert result.eigenvalues == pytest.approx([exact[-1].item()], rel=0.01)


class Once(torch.autograd.Function):
    """The identity, which says that it is differentiable once."""

    @staticmethod
    def forward(*arguments: Any) -> torch.Tensor:
        return arguments[1].clone()

    @staticmethod
    def backward(*arguments: Any) -> torch.Tensor:
        return _Refusing.apply(arguments[1])


class _Refusing(Once):
    @staticmethod
    def backward(*_: Any) -> torch.Tensor:
        raise RuntimeError("derivative for aten::attention_backward is not implemented")


class Opaque(Once):
    """The identity, whose backward pass is a kernel that autograd does not see."""

    @staticmethod
    def backward(*arguments: Any) -> torch.Tensor:
        return arguments[1].detach().clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("function", "note"),
    [
        (Once, "double backward is not available here (derivative for aten::attention_backward"),
        (Opaque, "a custom function in the loss has no second derivative"),
    ],
)
def test_without_double_backward_gradients_are_differenced(
    function: Any, note: str, dtype: torch.dtype
) -> None:
    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(function.apply(model(batch[0])), batch[1])

    result = sharpness(make_net(dtype), loss_fn, make_batch(dtype))

    exact = torch.linalg.eigvalsh(exact_hessian(make_net(dtype), make_batch(dtype)))
    assert result.eigenvalues == pytest.approx([exact[-1].item()], rel=0.01)
    assert note in result.note[0]


class Attention(nn.Module):
    """One head, by the fused kernel of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(inputs).reshape(1, 1, -1, 12).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.head(mixed.reshape(-1, 4))


def test_fused_attention_is_replaced_by_one_that_has_second_derivatives() -> None:
    torch.manual_seed(0)
    result = sharpness(Attention(), cross_entropy, make_batch())

    torch.manual_seed(0)
    exact = torch.linalg.eigvalsh(exact_hessian(Attention(), make_batch()))
    assert result.eigenvalues == pytest.approx([exact[-1].item()], rel=0.01)
    assert result.note == []


def test_a_compiled_model_is_measured() -> None:
    model = torch.compile(make_net(), backend="eager")

    result = sharpness(model, cross_entropy, make_batch())

    exact = torch.linalg.eigvalsh(exact_hessian(make_net(), make_batch()))
    assert result.eigenvalues == pytest.approx([exact[-1].item()], rel=0.01)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"lr": 0.1}, 20.0),
        ({"lr": 0.1, "momentum": 0.9}, 38.0),
        ({"lr": 0.1, "momentum": 0.9, "nesterov": True}, 38.0 / 2.8),
    ],
)
def test_limits_of_sgd(options: Any, limit: float) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), **options)

    result = sharpness(model, cross_entropy, make_batch(), optimizer=optimizer)

    assert result.limit == pytest.approx(limit)
    assert result.ratio == pytest.approx(result.eigenvalues[0] / limit)
    assert result.learning_rate == 0.1
    assert not result.preconditioned


class Bowl(nn.Module):
    """A quadratic with these curvatures."""

    def __init__(self, curvatures: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(len(curvatures), dtype=torch.float64))
        self.register_buffer("curvatures", torch.tensor(curvatures, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return 0.5 * (self.curvatures * self.weight.square()).sum()


def bowl_loss(model: Any, batch: Any) -> torch.Tensor:
    return model()


@pytest.mark.parametrize("factor", [0.98, 1.02])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.9},
    ],
    ids=str,
)
def test_training_diverges_above_the_limit_and_not_below(options: Any, factor: float) -> None:
    model = Bowl([10.0, 1.0, 0.1])
    rate = 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, **options)
    ratio = sharpness(model, bowl_loss, None, optimizer=optimizer).ratio
    assert ratio is not None
    optimizer.param_groups[0]["lr"] = rate * factor / ratio

    result = sharpness(model, bowl_loss, None, optimizer=optimizer)
    for _ in range(800):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    assert result.ratio == pytest.approx(factor)
    assert (model().item() > 1.0) == (factor > 1)


def test_groups_with_other_learning_rates_are_in_the_scale_of_the_fastest() -> None:
    model = nn.ModuleList([Bowl([10.0]), Bowl([30.0])])
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[1].parameters(), "lr": 0.01},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)

    result = sharpness(model, lambda m, _: m[0]() + m[1](), None, optimizer=optimizer)

    assert result.eigenvalues == pytest.approx([10.0])
    assert result.ratio == pytest.approx(0.5)
    assert result.preconditioned


def test_adam_is_measured_in_the_scale_of_its_second_moments() -> None:
    model, batch = make_net(torch.float64), make_batch(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(5):
        optimizer.zero_grad()
        cross_entropy(model, batch).backward()
        optimizer.step()

    result = sharpness(model, cross_entropy, batch, optimizer=optimizer)

    moments = [optimizer.state[each]["exp_avg_sq"].reshape(-1) for each in model.parameters()]
    scale = (1 - 0.9**5) * ((torch.cat(moments) / (1 - 0.999**5)).sqrt() + 1e-8)
    hessian = exact_hessian(model, batch) / (scale.sqrt()[:, None] * scale.sqrt()[None, :])
    exact = torch.linalg.eigvalsh(hessian)[-1].item()
    assert result.eigenvalues == pytest.approx([exact], rel=0.01)
    assert result.limit == pytest.approx(38.0 / 1e-3)
    assert result.preconditioned


def test_an_optimizer_without_a_limit_says_so() -> None:
    model = make_net()
    unused = torch.optim.AdamW(model.parameters(), lr=1e-3)
    others = [kind(model.parameters(), lr=1e-3) for kind in (torch.optim.Rprop, torch.optim.Adamax)]

    first, *found = (
        sharpness(model, cross_entropy, make_batch(), optimizer=each) for each in (unused, *others)
    )

    assert first.limit is None
    assert "Measure after its first step" in first.note[0]
    for name, each in zip(("Rprop", "Adamax"), found, strict=True):
        assert each.ratio is None
        assert f"no known limit of stability for the optimizer {name}" in each.note[0]


def test_weights_that_are_nan_are_an_error() -> None:
    model = make_net()
    model[0].weight.data.fill_(float("nan"))

    with pytest.raises(SurfaceError, match="Measure at an earlier checkpoint"):
        sharpness(model, cross_entropy, make_batch())
    assert torch.isnan(model[0].weight).all()


def test_more_eigenvalues_than_weights_are_refused() -> None:
    with pytest.raises(SurfaceError, match="choose more weights"):
        sharpness(Bowl([1.0, 2.0]), bowl_loss, None, k=3)


def test_no_eigenvalues_are_refused() -> None:
    with pytest.raises(ValueError, match="`k` is the number of eigenvalues, at least 1, not 0"):
        sharpness(Bowl([1.0]), bowl_loss, None, k=0)


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match='"eval" or "train", not \'test\''):
        sharpness(Bowl([1.0]), bowl_loss, None, mode="test")  # type: ignore[arg-type]


def test_the_hessian_of_a_loss_that_is_constant_has_eigenvalue_zero() -> None:
    model = nn.Linear(60, 1)

    found = sharpness(model, lambda net, batch: net(batch).sum() * 0, torch.ones(2, 60))

    assert found.eigenvalues == [0.0]


def test_the_result_is_json_and_comes_back() -> None:
    result = sharpness(make_net(), cross_entropy, make_batch())

    assert Sharpness.from_json(json.loads(json.dumps(result.to_json()))) == result


NORM_NOTE = "Batch norm uses the statistics of the batch, as in the steps of Adam."


def train_with_batch_norm(*, is_frozen: bool = False) -> tuple[nn.Module, Any, Any]:
    """A network whose first bias batch norm takes away again, after 40 steps of Adam."""
    torch.manual_seed(1)
    first = nn.Linear(10, 32)
    model = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    if is_frozen:
        model[1].eval()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x = torch.randn(256, 10)
    batch = x, torch.sin(x.sum(1, keepdim=True))
    for _ in range(40):
        chosen = torch.randint(0, 256, (64,))
        optimizer.zero_grad()
        mean_square(model, (batch[0][chosen], batch[1][chosen])).backward()
        optimizer.step()
    return model, optimizer, batch


def mean_square(model: Any, batch: Any) -> torch.Tensor:
    return ((model(batch[0]) - batch[1]) ** 2).mean()


@pytest.mark.parametrize(("rate", "is_past"), [(1e-3, False), (10.0, True)])
def test_adam_with_batch_norm_is_past_the_limit_at_a_rate_that_is(
    rate: float, is_past: bool
) -> None:
    """In eval mode the bias has curvature, and Adam's second moments of it are rounding noise."""
    model, optimizer, batch = train_with_batch_norm()
    optimizer.param_groups[0]["lr"] = rate
    before = {name: each.clone() for name, each in model.state_dict().items()}
    result = sharpness(model, mean_square, batch, optimizer=optimizer)
    in_train_mode = sharpness(model, mean_square, batch, optimizer=optimizer, mode="train")

    assert result.ratio is not None
    assert (result.ratio > 2.0) is is_past
    assert result.ratio == pytest.approx(in_train_mode.ratio)
    assert result.note == [NORM_NOTE]
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_batch_norm_that_the_training_keeps_in_eval_mode_keeps_its_statistics() -> None:
    model, optimizer, batch = train_with_batch_norm(is_frozen=True)
    result = sharpness(model, mean_square, batch, optimizer=optimizer)

    assert NORM_NOTE not in result.note
    assert result.ratio is not None
    assert result.ratio < 1.0
    assert not model[1].training
