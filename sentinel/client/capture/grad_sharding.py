"""Share: how a gradient lies over the ranks, and each rank's share of the norm of the whole.

The squares of all shares, summed over the ranks, are the square of the norm: a part that several
ranks hold counts on each of them by that much less. So nothing has to be exchanged in training.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sentinel.client.capture.scalars import RejectedValueError


class GradientShare(NamedTuple):
    """Over how many `ranks` a gradient lies, and how many of them hold one and the same part."""

    replicas: int
    ranks: int


def gradient_share(parameter: Any, flattened_shares: Any) -> GradientShare | None:
    """The rank's share of a parameter's gradient; None where every rank has it whole.

    `flattened` maps parameters that were flattened and split to their share. Raises Refused where
    nothing is known of it, or where the gradients of the ranks have still to be summed.
    """
    if hasattr(parameter.grad, "placements"):
        return _placement_share(parameter.grad, [p.is_partial() for p in parameter.grad.placements])
    if getattr(parameter, "_fsdp_flattened", False):
        known: GradientShare | None = (
            None if flattened_shares is None else flattened_shares.get(parameter)
        )
        if known is None:
            raise RejectedValueError("shape")
        return known
    return None


def norm_share(norm: Any) -> GradientShare | None:
    """The rank's share of a norm that PyTorch computed; None where every rank has it whole."""
    if not hasattr(norm, "placements"):
        return None
    # A norm still to be brought together is, on each rank, the norm of its part.
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
    """What this rank holds of a tensor: never by a collective."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def combine_norms(norms_and_shares: list[tuple[Any, GradientShare | None]]) -> dict[str, Any]:
    """The norm of all, `grad_norm`, or this rank's share of it, `grad_norm_local`; empty of none.

    What every rank has whole lies, beside what is split, over as many ranks as that does.
    """
    if not norms_and_shares:
        return {}
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
