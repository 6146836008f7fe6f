"""Text about ranks that have sent nothing, whose node may be the cause of what others report."""

from __future__ import annotations

from collections.abc import Mapping


def unreported_ranks_text(attributes: Mapping[str, str]) -> str:
    """A sentence that names them, or "" if every rank of the run has sent something.

    >>> unreported_ranks_text({"unreported_ranks": "2-3"})
    'Nothing was ever received from ranks 2-3: check their nodes first.'
    """
    ranks = attributes.get("unreported_ranks", "")
    if not ranks:
        return ""
    if ranks.isdecimal():
        return f"Nothing was ever received from rank {ranks}: check its node first."
    return (
        f"Nothing was ever received from ranks {ranks.replace(',', ', ')}: check their nodes first."
    )
