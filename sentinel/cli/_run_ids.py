"""Run ids as arguments: which one was meant, and completion by the shell."""

from __future__ import annotations

from pathlib import Path

MAX_COMPLETIONS = 200
"""Newest runs that the shell offers."""


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


def complete_run(incomplete: str) -> list[str]:
    """Ids that begin with what was typed, the newest first."""
    from sentinel.store.run_names import newest_first
    from sentinel.transport.paths import list_runs

    runs = [each for each in list_runs() if each.startswith(incomplete)]
    return newest_first(runs)[:MAX_COMPLETIONS]


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin with what was typed; their modules are not imported."""
    from importlib.util import find_spec
    from pkgutil import iter_modules

    package = find_spec("sentinel.detectors")
    found = iter_modules(package.submodule_search_locations if package else None)
    names = [each.name for each in found if not each.name.startswith("_")]
    return sorted(name for name in names if name.startswith(incomplete))
