"""Run ids as arguments: which one was meant, and completion by the shell."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

MAX_SUGGESTIONS = 3
MAX_COMPLETIONS = 200
"""Newest runs that the shell offers."""

_CUTOFF = 0.7


def resolve_run(run: str) -> str:
    """The only id that begins with `run`; else, or if a run or file has that name, `run` itself.

    The launcher's part of an id, such as the end of "sft-1edff4", need not be typed.
    """
    from sentinel.transport.paths import list_runs

    runs = list_runs()
    beginning = [each for each in runs if each.startswith(run)] if run else []
    is_exact = run in runs or Path(run).exists()
    return run if is_exact or len(beginning) != 1 else beginning[0]


def resolve_argument(run: str | None) -> str | None:
    """`resolve_run` of an argument that may be left out."""
    return None if run is None else resolve_run(run)


def resolve_arguments(runs: list[str]) -> list[str]:
    """`resolve_run` of each."""
    return [resolve_run(run) for run in runs]


def similar_runs_text(run: str, *, may_be_new: bool = False) -> str:
    """The question which run was meant, for an id that is not known; empty if none is similar."""
    names = " or ".join(repr(each) for each in similar_runs(run, may_be_new=may_be_new))
    return f"Did you mean {names}?" if names else ""


def similar_runs(run: str, *, may_be_new: bool = False) -> list[str]:
    """Ids that begin with this one, the newest first, else those that are spelled alike.

    What `may_be_new` is compared by its spelling only: others may begin with it by chance.
    """
    from sentinel.transport.paths import list_runs

    runs = list_runs()
    beginning = [each for each in runs if each.startswith(run)] if run else []
    if beginning and not may_be_new:
        return _newest_first(beginning)[:MAX_SUGGESTIONS]
    # The end of an id is random, so a name is compared with the part before it, too.
    pairs = () if may_be_new else ((each.rpartition("-")[0], each) for each in runs)
    names = {name: each for name, each in pairs if name}
    close = get_close_matches(run, [*runs, *names], n=MAX_SUGGESTIONS, cutoff=_CUTOFF)
    return list(dict.fromkeys(names.get(each, each) for each in close))


def complete_run(incomplete: str) -> list[str]:
    """Ids that begin with what was typed, the newest first."""
    from sentinel.transport.paths import list_runs

    runs = [each for each in list_runs() if each.startswith(incomplete)]
    return _newest_first(runs)[:MAX_COMPLETIONS]


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin with what was typed; their modules are not imported."""
    from importlib.util import find_spec
    from pkgutil import iter_modules

    package = find_spec("sentinel.detectors")
    found = iter_modules(package.submodule_search_locations if package else None)
    names = [each.name for each in found if not each.name.startswith("_")]
    return sorted(name for name in names if name.startswith(incomplete))


def _newest_first(runs: list[str]) -> list[str]:
    from sentinel.transport.paths import current_run_dir

    def written(run: str) -> float:
        try:
            return current_run_dir(run).stat().st_mtime
        except OSError:
            return 0.0

    return sorted(runs, key=written, reverse=True)
