"""Curvature of the loss: leading Hessian eigenvalues, and how far they are from instability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Sharpness:
    """The largest eigenvalues of the Hessian of the loss, the largest first."""

    eigenvalues: list[float]
    learning_rate: float | None = None
    limit: float | None = None
    """Eigenvalue above which the optimizer oscillates on a quadratic; None if it is not known."""
    ratio: float | None = None
    """Largest eigenvalue / limit: 1 is the edge of stability."""
    preconditioned: bool = False
    """Whether the eigenvalues are those of the Hessian in the scale of an adaptive optimizer."""
    trace: float | None = None
    evaluations: int = 0
    """Hessian-vector products, each as costly as about two gradients."""
    seconds: float = 0.0
    note: list[str] = field(default_factory=list)
    step: int | None = None
    name: str = ""
    kind: str = "sharpness"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; numbers that are not finite become None."""
        values: dict[str, Any] = finite_values(asdict(self))
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result whose `to_json` returned `data`. Keys that are not known are ignored."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


def finite_values(value: Any) -> Any:
    """The same lists and dicts with None for every number that is not finite.

    >>> finite_values({"loss": [1.0, float("nan")]})
    {'loss': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: finite_values(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_values(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
