"""The names of runs: which one was meant by an id that is not known, and one that is unused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from sentinel.transport.paths import current_run_dir, list_runs

MAX_SUGGESTIONS = 3

_CUTOFF = 0.7


def unused_name(name: str, taken: Sequence[str]) -> str:
    """The name, numbered if it is taken.

    >>> unused_name("demo", ["demo"])
    'demo (2)'
    """
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 2))
    return next(each for each in (name, *numbered) if each not in taken)


def similar_runs_text(run: str, *, may_be_new: bool = False) -> str:
    """The question which run was meant, for an id that is not known; empty if none is similar."""
    names = " or ".join(repr(each) for each in similar_runs(run, may_be_new=may_be_new))
    return f"Did you mean {names}?" if names else ""


def unknown_run_hint(run: str) -> str:
    """What to do about an id that is not known: the similar runs, or how to list all."""
    return similar_runs_text(run) or "`sentinel status --all` lists the runs."


def similar_runs(run: str, *, may_be_new: bool = False) -> list[str]:
    """The `similar_ids` among the runs of the home directory."""
    return similar_ids(run, list_runs(), newest_first, may_be_new=may_be_new)


def similar_ids(
    run: str,
    runs: Sequence[str],
    order: Callable[[list[str]], list[str]] = list,
    *,
    may_be_new: bool = False,
) -> list[str]:
    """Those of `runs` that begin with this id, in that order, else those that are spelled alike.

    What `may_be_new` is compared by its spelling only: others may begin with it by chance.
    """
    beginning = [each for each in runs if each.startswith(run)] if run else []
    if beginning and not may_be_new:
        return order(beginning)[:MAX_SUGGESTIONS]
    # The end of an id is random, so a name is compared with the part before it, too.
    pairs = () if may_be_new else ((each.rpartition("-")[0], each) for each in runs)
    names = {name: each for name, each in pairs if name}
    close = get_close_matches(run, [*runs, *names], n=MAX_SUGGESTIONS, cutoff=_CUTOFF)
    return list(dict.fromkeys(names.get(each, each) for each in close))


def newest_first(runs: list[str]) -> list[str]:
    """The runs in the order in which their directories changed, the last change first."""

    def written(run: str) -> float:
        try:
            return current_run_dir(run).stat().st_mtime
        except OSError:
            return 0.0

    return sorted(runs, key=written, reverse=True)
