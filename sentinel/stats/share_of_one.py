"""Recognises rewards that are shares of 1, such as a rate of correct answers."""

from __future__ import annotations

PART_OF_ONE = 0.5
"""Highest reward from which rewards of 0 to 1 are taken for shares of 1."""


def are_shares_of_one(lowest: float, highest: float) -> bool:
    """Whether rewards of this range have the ceiling 1, which a run may not have reached yet."""
    return lowest >= 0.0 and PART_OF_ONE < highest <= 1.0
