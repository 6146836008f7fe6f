"""The gradients of each layer of a model, as they are now."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from sentinel.client.capture.layer_measurement import Layers, Measurement, plan_layers
from sentinel.insight.result import Result
from sentinel.signals.layer_statistics import LayerSum, by_layer, layer_values
from sentinel.store.artifact import current_run_directory, save_artifact

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class GradientFlow(Result):
    """The norm and the share of zero of each layer's gradient; None where it has none."""

    layers: list[str]
    """In the order of the model."""
    layer_grad_norm: list[float | None]
    """L2 norms, of the whole gradient if it is sharded over ranks."""
    layer_grad_zero_share: list[float | None]
    """Share of a sample of at most 2,048 elements of a layer, 0 to 1."""
    histograms: dict[str, list[int]] = field(default_factory=dict)
    """By layer, the first exponent and counts: count i is of sampled elements g of this rank with
    2**(first+i) <= |g| < 2**(first+i+1)."""
    parameter_count: int = 0
    """Number of weights whose gradient is measured, on this rank."""
    step: int | None = None
    note: list[str] = field(default_factory=list)
    name: str = ""
    kind: str = "gradient_flow"


def gradient_flow(
    model: nn.Module, *, name: str = "", step: int | None = None, save: bool = True
) -> GradientFlow:
    """Measure the gradients that the parameters of `model` have now, layer by layer.

    Call it after a backward pass and before the optimizer's step; to measure while a model trains,
    use `sentinel.monitor(insight="gradient_flow")`. Nothing is changed. It waits for the device. Of
    a sharded model (FSDP), every rank must call it: the sums over the parts are gathered. With
    `save`, the result is stored with the run that is monitored in this process, if there is one.

    Raises ValueError if no parameter that is trained has a gradient.
    """
    import torch  # noqa: PLC0415 - this module is imported without it

    parameters = [each for each in model.parameters() if each.requires_grad]
    layers = plan_layers(parameters, model)
    if all(each.grad is None for each in parameters):
        raise ValueError(
            "gradient_flow: no trained parameter of the model has a gradient. Call it between "
            "loss.backward() and optimizer.zero_grad()."
        )
    with torch.no_grad():
        layers.capture(parameters, None, is_measured=True)
        measurement = layers.finish(parameters, None, _read)
    if measurement is None:
        raise RuntimeError("gradient_flow: the gradients cannot be read.")
    values = layer_values(layers.names, _combined(layers, measurement))
    result = GradientFlow(
        layers=layers.names,
        layer_grad_norm=[*by_layer(values, "layer_grad_norm").values()],
        layer_grad_zero_share=[*by_layer(values, "layer_grad_zero_share").values()],
        histograms=measurement.histogram,
        parameter_count=sum(each.grad.numel() for each in parameters if each.grad is not None),
        step=step,
        name=name,
    )
    directory = current_run_directory() if save else None
    if directory is not None:
        save_artifact(directory, result)
    return result


def _read(vector: Any, deliver: Any) -> bool:
    deliver(vector.tolist())
    return True


def _combined(layers: Layers, measurement: Measurement) -> list[LayerSum]:
    """The sums over all ranks."""
    if not layers.is_sharded:
        return measurement.sums
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    numbers = [astuple(each) for each in measurement.sums]
    own = torch.tensor(numbers, dtype=torch.float32, device=layers.devices[0].device)
    gathered = [torch.empty_like(own) for _ in range(layers.world_size)]
    dist.all_gather(gathered, own)
    of_ranks = [[LayerSum(*row) for row in each.tolist()] for each in gathered]
    return [sum(of_layer, LayerSum()) for of_layer in zip(*of_ranks, strict=True)]
