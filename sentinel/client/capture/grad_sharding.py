"""How a gradient is sharded over ranks, and the share of each rank in the norm of the whole.

The squares of all shares, summed over the ranks, are the square of the norm: a part that n ranks
hold counts 1/n on each of them. The agent combines the shares, so training exchanges nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sentinel.client.capture.scalars import RejectedValueError


class GradientShare(NamedTuple):
    """A gradient is sharded over `ranks` ranks; `replicas` of them hold the same part."""

    replicas: int
    ranks: int


def gradient_share(parameter: Any, flattened_shares: Any) -> GradientShare | None:
    """The rank's share of a parameter's gradient; None if every rank holds all of it.

    A parameter without a gradient is sharded as its gradient would be. `flattened_shares` maps
    flattened and split parameters to their share. Raises RejectedValueError if the share is
    unknown, or if the gradients are not yet reduced.
    """
    tensor = parameter if parameter.grad is None else parameter.grad
    if hasattr(tensor, "placements"):
        return _placement_share(tensor, [p.is_partial() for p in tensor.placements])
    if getattr(parameter, "_fsdp_flattened", False):
        share: GradientShare | None = (
            None if flattened_shares is None else flattened_shares.get(parameter)
        )
        if share is None:
            raise RejectedValueError("shape")
        return share
    return None


def norm_share(norm: Any) -> GradientShare | None:
    """The rank's share of a norm that PyTorch computed; None if it is the norm of the whole."""
    if not hasattr(norm, "placements"):
        return None
    # A partial norm is, on each rank, the norm of its part.
    sums = [p.is_partial() and getattr(p, "norm_type", None) != 2 for p in norm.placements]
    return _placement_share(norm, sums)


def _placement_share(tensor: Any, partial_flags: list[bool]) -> GradientShare:
    if any(partial_flags):
        raise RejectedValueError("shape")
    mesh, replicas = tensor.device_mesh, 1
    for dim, placement in enumerate(tensor.placements):
        replicas *= mesh.size(dim) if placement.is_replicate() else 1
    return GradientShare(replicas, mesh.size())


def local_part(tensor: Any) -> Any:
    """The part of a tensor that this rank holds; runs no collective."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def combine_norms(norms_and_shares: list[tuple[Any, GradientShare | None]]) -> dict[str, Any]:
    """The norm of all, `grad_norm`, or this rank's share, `grad_norm_local`; empty without norms.

    Beside sharded gradients, a gradient that every rank holds counts as replicated on all of them.
    """
    if not norms_and_shares:
        return {}
    if len(norms_and_shares) == 1 and norms_and_shares[0][1] is None:
        return {"grad_norm": norms_and_shares[0][0]}
    ranks = max((share.ranks for _, share in norms_and_shares if share), default=1)
    shares = [share or GradientShare(ranks, ranks) for _, share in norms_and_shares]
    norms = [norm for norm, _ in norms_and_shares]
    name = "grad_norm"
    if any(share.replicas < share.ranks for share in shares):
        name = "grad_norm_local"
        norms = [n / share.replicas**0.5 for n, share in zip(norms, shares, strict=True)]
    if len(norms) == 1:
        return {name: norms[0]}
    return {name: sum(norm.detach().double() ** 2 for norm in norms) ** 0.5}
