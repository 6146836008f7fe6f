"""Remedies that name the last checkpoint before the onset, where there is one."""

from __future__ import annotations

import re

_CLAUSE = re.compile(
    r"(?P<verb>[Rr])esume(?: all ranks)? from (?:the last|the|a|one) checkpoint before the onset"
)


def fit_checkpoint_clause(remedy: str, last_good_step: int | None) -> str:
    """The remedy; it names no checkpoint if none before the onset is known.

    >>> remedy = "Resume from the last checkpoint before the onset with warm-up."
    >>> fit_checkpoint_clause(remedy, 40)
    'Resume from the last checkpoint before the onset with warm-up.'
    >>> fit_checkpoint_clause(remedy, None)
    'Start again from before the onset with warm-up.'
    """
    if last_good_step is not None:
        return remedy
    return _CLAUSE.sub(
        lambda found: ("S" if found["verb"] == "R" else "s") + "tart again from before the onset",
        remedy,
    )
