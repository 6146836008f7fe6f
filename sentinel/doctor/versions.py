"""Versions: Python and the packages that sentinel stands on."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from sentinel import __version__
from sentinel.doctor.check_result import Remark, mend, note, well

DISTRIBUTION = "train-sentinel"
_NEEDED = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9][0-9.]*))?\s*(?:;\s*(.*))?$")


def versions(installed: Callable[[str], str] = version) -> Iterator[Remark]:
    """Python's, ours, and those of every package we need; `installed` gives one by name."""
    python = platform.python_version()
    if platform.system() == "Linux":
        yield well("python", f"{python} on {platform.machine()}, at {sys.executable}")
    else:
        yield mend("python", f"{python} on {platform.system()}", "watch runs on Linux, as yet")
    yield well("sentinel", __version__)
    for name, floor in sorted(_needed()):
        yield _package(name, floor, installed)
    torch = _found("torch", installed)
    if torch is None:
        yield note("torch", "not installed", "pip install torch, where training is to be watched")
    else:
        yield well("torch", torch)


def at_least(found: str, floor: str) -> bool:
    """Whether a version is that or a later one, by its leading numbers.

    >>> at_least("2.10.0+cpu", "2.9"), at_least("2.9rc1", "2.9.1")
    (True, False)
    """
    mine, its = numbers(found), numbers(floor)
    most = max(len(mine), len(its))
    return mine + (0,) * (most - len(mine)) >= its + (0,) * (most - len(its))


def numbers(found: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> numbers("2.13.0+cpu"), numbers("unknown")
    ((2, 13, 0), ())
    """
    start = re.match(r"\d+(?:\.\d+)*", found)
    return tuple(map(int, start[0].split("."))) if start else ()


def _needed() -> Iterator[tuple[str, str]]:
    """What our own distribution asks for, leaving its extras and other Pythons' needs out."""
    try:
        asked = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        # Run from a clone that was never installed.
        return
    for line in asked:
        match = _NEEDED.match(line)
        if match and not match[3]:
            yield match[1], match[2] or "0"


def _package(name: str, floor: str, installed: Callable[[str], str]) -> Remark:
    found = _found(name, installed)
    if found is None:
        return mend(name, "not installed", f"pip install '{name}>={floor}'")
    if not at_least(found, floor):
        return mend(name, f"{found}, older than {floor}", f"pip install '{name}>={floor}'")
    return well(name, found)


def _found(name: str, installed: Callable[[str], str]) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None
