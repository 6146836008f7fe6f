"""The question which name was meant, for a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, names: Iterable[str], similarity: float = 0.6) -> str:
    """The name that is spelled most alike; empty if none is similar.

    >>> nearest_name("kubernets", ["kubernetes", "slurm"])
    'kubernetes'
    """
    return next(iter(get_close_matches(name, [*names], n=1, cutoff=similarity)), "")


def nearest_hint(name: str, names: Iterable[str], similarity: float = 0.6) -> str:
    """A question with the nearest of the names, to follow a sentence; empty if none is similar.

    >>> nearest_hint("kubernets", ["kubernetes", "slurm"])
    ' Did you mean "kubernetes"?'
    """
    near = nearest_name(name, names, similarity)
    return f' Did you mean "{near}"?' if near else ""
