"""How ranks ended, and which have sent nothing, in words, from the attributes of a heartbeat."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.model.number_ranges import ranges_text

CRASHES: Mapping[str, str] = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "abort",
}
"""Signals of errors in native code, and what they stand for."""


def ranks_in(attributes: Mapping[str, str], name: str) -> list[int]:
    """The ranks of an attribute that lists them with commas."""
    return [int(rank) for rank in attributes.get(name, "").split(",") if rank]


def format_ranks(ranks: list[int]) -> str:
    """Ranks as the start of a sentence.

    >>> format_ranks([3]), format_ranks([0, 1, 2, 5])
    ('Rank 3', 'Ranks 0-2, 5')
    """
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {ranges_text(ranks)}"


def followers_text(attributes: Mapping[str, str], running: int) -> str:
    """What became of the other ranks, as the end of a sentence; empty if there is nothing."""
    following = ranks_in(attributes, "following_ranks")
    parts = []
    if following:
        name = format_ranks(following)
        parts.append(f"{name[0].lower()}{name[1:]} failed after it")
    if running:
        parts.append("1 rank still runs" if running == 1 else f"{running} ranks still run")
    return " and ".join(parts)


def death_text(attributes: Mapping[str, str]) -> str:
    """How ranks ended that raised no exception: the verb of a sentence and its complement."""
    signal, code = attributes.get("signal", ""), attributes.get("code", "")
    if attributes.get("oom_kill"):
        limit = attributes.get("memory_limit", "")
        return f"killed by the out-of-memory killer{f' (limit {limit})' if limit else ''}"
    if signal in CRASHES:
        return f"ended by {signal} ({CRASHES[signal]})"
    if signal:
        return f"killed by {signal}"
    return f"ended with exit code {code}" if code else "killed"


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
