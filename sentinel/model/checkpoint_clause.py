"""Remedies that advise to resume from a checkpoint, where there is one.

Which one is the last before the onset changes with the estimate of the onset. The last checkpoint
of a run is known when it is over.
"""

from __future__ import annotations

import re

_CLAUSE = re.compile(
    r"(?P<verb>[Rr])esume(?: all ranks)? from (?:the last|the|a|one) checkpoint before the onset"
)
_LAST_CHECKPOINT = re.compile(r"(?P<verb>[Rr])esume from the last checkpoint(?! before the onset)")


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


def fit_last_checkpoint(remedy: str, *, has_checkpoint: bool) -> str:
    """The remedy of a run that is over; it names no last checkpoint if none is known.

    >>> fit_last_checkpoint("Resume from the last checkpoint.", has_checkpoint=False)
    'Start the run again.'
    """
    if has_checkpoint:
        return remedy
    return _LAST_CHECKPOINT.sub(
        lambda found: ("S" if found["verb"] == "R" else "s") + "tart the run again", remedy
    )
