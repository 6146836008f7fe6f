"""Versions: Python and the packages that sentinel stands on."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from sentinel import __version__
from sentinel.doctor.check_result import CheckResult, fail, ok, warn

DISTRIBUTION = "train-sentinel"
_REQUIREMENT_PATTERN = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9][0-9.]*))?\s*(?:;\s*(.*))?$")


def check_versions(installed_version: Callable[[str], str] = version) -> Iterator[CheckResult]:
    """Python's, ours, and those of every package we need; `installed` gives one by name."""
    python = platform.python_version()
    if platform.system() == "Linux":
        yield ok("python", f"{python} on {platform.machine()}, at {sys.executable}")
    else:
        yield fail("python", f"{python} on {platform.system()}", "watch runs on Linux, as yet")
    yield ok("sentinel", __version__)
    for name, floor in sorted(_requirements()):
        yield _check_package(name, floor, installed_version)
    torch = _version_or_none("torch", installed_version)
    if torch is None:
        yield warn("torch", "not installed", "pip install torch, where training is to be watched")
    else:
        yield ok("torch", torch)


def is_at_least(found: str, minimum: str) -> bool:
    """Whether a version is that or a later one, by its leading numbers.

    >>> at_least("2.10.0+cpu", "2.9"), at_least("2.9rc1", "2.9.1")
    (True, False)
    """
    mine, its = version_numbers(found), version_numbers(minimum)
    most = max(len(mine), len(its))
    return mine + (0,) * (most - len(mine)) >= its + (0,) * (most - len(its))


def version_numbers(found: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> numbers("2.13.0+cpu"), numbers("unknown")
    ((2, 13, 0), ())
    """
    start = re.match(r"\d+(?:\.\d+)*", found)
    return tuple(map(int, start[0].split("."))) if start else ()


def _requirements() -> Iterator[tuple[str, str]]:
    """What our own distribution asks for, leaving its extras and other Pythons' needs out."""
    try:
        asked = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        # Run from a clone that was never installed.
        return
    for line in asked:
        match = _REQUIREMENT_PATTERN.match(line)
        if match and not match[3]:
            yield match[1], match[2] or "0"


def _check_package(name: str, minimum: str, installed_version: Callable[[str], str]) -> CheckResult:
    found = _version_or_none(name, installed_version)
    if found is None:
        return fail(name, "not installed", f"pip install '{name}>={minimum}'")
    if not is_at_least(found, minimum):
        return fail(name, f"{found}, older than {minimum}", f"pip install '{name}>={minimum}'")
    return ok(name, found)


def _version_or_none(name: str, installed_version: Callable[[str], str]) -> str | None:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None
