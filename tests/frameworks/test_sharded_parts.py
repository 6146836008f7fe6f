"""Shares of a gradient on simulated ranks: each rule, and dropped values."""

import pytest
from requirements import need

need("torch")

import torch
import torch.distributed as dist
from support.recorders import RecordedRank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.testing._internal.distributed.fake_pg import FakeStore

import sentinel
from sentinel.client.capture.grad_norm import GradNorm
from sentinel.client.capture.grad_sharding import GradientShare
from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.scalars import RejectedValueError
from sentinel.model.record import Event

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

ONES, TWOS = torch.ones(4), torch.full((4,), 2.0)
"""Gradients of norm 2 and 4."""


@pytest.fixture
def mesh():
    """Two pairs of ranks; this process is the first and cannot communicate."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    dist.destroy_process_group()


class Stub:
    """A parameter, or an optimizer."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def optimizer(*grads, **marks):
    return Stub(param_groups=[{"params": [Stub(grad=grad, **marks) for grad in grads]}])


def spread(tensor, mesh, *placements):
    return DTensor.from_local(tensor, mesh, placements, run_check=False)


def test_a_shard_held_twice_counts_half_on_each_rank(mesh):
    gradients = optimizer(
        spread(ONES, mesh, Replicate(), Shard(0)), spread(TWOS, mesh, Shard(0), Shard(0))
    )

    assert GradNorm().measure(gradients) == {
        "grad_norm_local": pytest.approx((4 / 2 + 16) ** 0.5, rel=1e-6)
    }


def test_half_precision_gradients_have_an_unrounded_norm():
    half = torch.linspace(0.1, 0.9, 1000).to(torch.bfloat16)
    mixed = [half, torch.full((3,), 0.7)]
    for gradients in (mixed, [*mixed, torch.ones(2, dtype=torch.float64)]):
        expected = sum(float((grad.double() ** 2).sum()) for grad in gradients) ** 0.5

        norm = GradNorm().measure(optimizer(*gradients))["grad_norm"]

        assert float(norm) == pytest.approx(expected, rel=1e-6)


def test_an_unsharded_gradient_gives_the_norm_itself(mesh):
    both = (Replicate(), Replicate())
    gradients = optimizer(spread(ONES, mesh, *both), spread(TWOS, mesh, *both))

    assert GradNorm().measure(gradients) == {"grad_norm": pytest.approx(20**0.5, rel=1e-6)}


def test_an_unsharded_gradient_beside_shards_has_their_number_of_holders(mesh):
    gradients = optimizer(spread(ONES, mesh, Shard(0), Shard(0)), TWOS)

    assert GradNorm().measure(gradients) == {
        "grad_norm_local": pytest.approx((4 + 16 / 4) ** 0.5, rel=1e-6)
    }


def test_meshes_of_different_sizes_are_taken_as_declared(mesh):
    gradients = optimizer(
        spread(ONES, mesh["parts"], Shard(0)), spread(TWOS, mesh, Replicate(), Shard(0)), TWOS
    )

    assert GradNorm().measure(gradients) == {
        "grad_norm_local": pytest.approx((4 + 16 / 2 + 16 / 4) ** 0.5, rel=1e-6)
    }


@pytest.mark.fault("T9")
def test_partial_gradients_are_dropped_and_counted(mesh, tmp_path):
    gradients = optimizer(spread(ONES, mesh, Partial(), Shard(0)))
    with pytest.raises(RejectedValueError):
        GradNorm().measure(gradients)

    recorded_rank = RecordedRank(tmp_path / "0-0.ring")
    loop = TrainingLoop(recorded_rank.recorder)
    loop.before_step(gradients, (), {})

    assert recorded_rank.drops() == {"shape": 1}
    assert loop.measured == {}


def test_an_unreduced_norm_of_an_older_version_is_a_share(mesh):
    """In that version clipping returns a norm that the caller reduces."""
    first = torch.ones(4)
    norm = GradNorm()
    parts = (_NormPartial(2), _NormPartial(2))
    norm.add_clip([first], spread(torch.tensor(3.0), mesh, *parts))
    assert norm.pop_clipped_norm(optimizer(first)) == {"grad_norm_local": 3.0}

    # Beside unsharded norms, on as many ranks.
    second, third = torch.ones(4), torch.ones(4)
    norm.add_clip([first], spread(torch.tensor(3.0), mesh, Replicate(), _NormPartial(2)))
    norm.add_clip([second], spread(torch.tensor(4.0), mesh, Replicate(), Replicate()))
    norm.add_clip([third], torch.tensor(2.0))
    assert norm.pop_clipped_norm(optimizer(first, second, third)) == {
        "grad_norm_local": pytest.approx((9 / 2 + 16 / 4 + 4 / 4) ** 0.5)
    }


@pytest.mark.fault("T9")
@pytest.mark.parametrize("placement", [Partial(), Shard(0)])
def test_a_norm_that_cannot_be_a_share_is_dropped(mesh, placement):
    first, norm = torch.ones(4), GradNorm()
    scalar = torch.tensor(3.0) if placement == Partial() else torch.tensor([3.0])
    norm.add_clip([first], spread(scalar, mesh, Replicate(), placement))

    if placement == Partial():
        with pytest.raises(RejectedValueError):
            norm.pop_clipped_norm(optimizer(first))
    else:
        assert norm.pop_clipped_norm(optimizer(first)) == {
            "grad_norm_local": pytest.approx(3 / 2**0.5)
        }


@pytest.mark.fault("T9")
def test_unknown_flattened_parameters_are_dropped():
    """Wrapped before the run started, so their sharding is unknown."""
    with pytest.raises(RejectedValueError):
        GradNorm().measure(optimizer(ONES, _fsdp_flattened=True))


def test_a_rank_without_gradients_has_a_share_of_zero():
    norm = GradNorm()
    frozen = optimizer(None, _fsdp_flattened=True)
    assert norm.measure(frozen) == {}

    norm.flattened_shares = dict.fromkeys(frozen.param_groups[0]["params"], GradientShare(1, 2))
    assert norm.measure(frozen) == {"grad_norm_local": 0.0}


def test_the_loss_is_read_before_a_sharded_scaler_scales_it(recorded):
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer_ = torch.optim.SGD([weight], lr=0.5)
    scaler = ShardedGradScaler("cpu", init_scale=1024.0, process_group=None)
    with sentinel.monitor(run="scaled", agent=False, strict=True):
        loss = weight.sum()
        scaler.scale(loss).backward()
        optimizer_.step()

    (values,) = [r.values for r in recorded()[0] if r.event is Event.STEP]
    assert values["loss"] == 4.0


def test_ranks_with_different_costs_measure_at_the_same_steps():
    """Shares of different steps could not be combined."""
    cheap, expensive, most_expensive = (
        GradNorm(is_sharded=True),
        GradNorm(is_sharded=True),
        GradNorm(is_sharded=True),
    )
    cheap.costs_seconds.extend([0.0001] * 3)
    expensive.costs_seconds.extend([0.005] * 3)
    most_expensive.costs_seconds.extend([0.02] * 3)

    measured = [
        {step for step in range(1, 201) if rank.is_due(0.1)}
        for rank in (cheap, expensive, most_expensive)
    ]

    assert [len(steps) for steps in measured] == [200, 20, 10]
    assert measured[2] <= measured[1] <= measured[0]
