"""What every measurement on a model does: restore the model, and stop together with other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sentinel.client.api import phase
from sentinel.client.session import CurrentSession
from sentinel.insight.measure.model_state import preserved
from sentinel.insight.measure.parameters import Selection, select_parameters
from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.surface_error import SurfaceError
from sentinel.insight.measure.weight_space import WeightSpace

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def measuring(
    model: nn.Module, parameters: Selection, process_group: Any, timeout: float | None
) -> Iterator[tuple[WeightSpace, RankExchange]]:
    """A block that may change the chosen weights: their space, and the ranks that share the work.

    At its end the model is restored, and the other ranks are notified if this one failed. A
    monitored run shows it as the phase `insight`. Raises SurfaceError for a model that cannot be
    measured, and if a rank is lost; ValueError and TypeError for a selection that chooses no
    parameter.
    """
    chosen = select_parameters(model, parameters)
    exchange = RankExchange(_find_group(model, process_group), timeout)
    try:
        # In a monitored run it is no training step that takes so long.
        with phase("insight"), _without_inference_mode(), preserved(model):
            yield WeightSpace(model, chosen), exchange
    except BaseException as error:
        is_collective = isinstance(error, RuntimeError) and not isinstance(error, SurfaceError)
        lost = exchange.fail(error, is_collective=is_collective)
        if lost is not None:
            raise SurfaceError(f"{lost} The model is restored.") from error
        raise


def count_activity() -> None:
    """Publish a sign of life: in a monitored run a long measurement is no stall."""
    recorder = CurrentSession.recorder
    if recorder is not None:
        with suppress(ValueError):  # the ring was closed meanwhile
            recorder.ring.count_activity()


def _find_group(model: nn.Module, process_group: Any) -> Any:
    """The process group whose ranks measure together; None for this rank alone.

    That of a DDP or FSDP2 model, or `process_group`; False is this rank alone.
    """
    if process_group is False:
        if any(hasattr(each, "placements") for each in model.parameters()):
            raise SurfaceError(
                "The model is sharded, so every rank has to take part: leave out `process_group`."
            )
        return None
    import torch.distributed as dist  # noqa: PLC0415 - slow to import
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    if not dist.is_available() or not dist.is_initialized():
        if process_group is None:
            return None
        raise SurfaceError("`process_group` is given, but torch.distributed is not initialised.")
    if process_group is not None and process_group is not True:
        return process_group
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise SurfaceError(
                "FSDP1 keeps the weights in flat buffers, which have no filters: use FSDP2 "
                "(torch.distributed.fsdp.fully_shard), or measure a saved checkpoint."
            )
        if isinstance(module, DistributedDataParallel):
            return module.process_group
    sharded = [each for each in model.parameters() if hasattr(each, "placements")]
    if sharded:
        mesh: Any = getattr(sharded[0], "device_mesh")  # noqa: B009 (a DTensor has it)
        return mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
    return dist.group.WORLD if process_group is True else None


def _without_inference_mode() -> Any:
    import torch  # noqa: PLC0415 - slow to import

    # Tensors of inference mode can have no gradient.
    return torch.inference_mode(mode=False)
