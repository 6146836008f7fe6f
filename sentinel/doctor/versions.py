"""Checks of the versions of Python, sentinel and the packages that it needs."""

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
    """One result per package; `installed_version` returns the version of a package by name."""
    python = platform.python_version()
    if platform.system() == "Linux":
        yield ok("python", f"{python} on {platform.machine()}, at {sys.executable}")
    else:
        yield fail("python", f"{python} on {platform.system()}", "sentinel supports Linux only")
    yield ok("sentinel", __version__)
    for name, minimum in sorted(_requirements()):
        yield _check_package(name, minimum, installed_version)
    torch = _version_or_none("torch", installed_version)
    if torch is None:
        yield warn("torch", "not installed", "pip install torch in the environment of the training")
    else:
        yield ok("torch", torch)


def is_at_least(version: str, minimum: str) -> bool:
    """Whether a version is at least `minimum`, by its leading numbers.

    >>> is_at_least("2.10.0+cpu", "2.9"), is_at_least("2.9rc1", "2.9.1")
    (True, False)
    """
    left, right = version_numbers(version), version_numbers(minimum)
    length = max(len(left), len(right))
    return left + (0,) * (length - len(left)) >= right + (0,) * (length - len(right))


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> version_numbers("2.13.0+cpu"), version_numbers("unknown")
    ((2, 13, 0), ())
    """
    start = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, start[0].split("."))) if start else ()


def _requirements() -> Iterator[tuple[str, str]]:
    """Name and minimum version of each requirement without a marker (extras, Python versions)."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        # A checkout that is not installed.
        return
    for line in requirements:
        match = _REQUIREMENT_PATTERN.match(line)
        if match and not match[3]:
            yield match[1], match[2] or "0"


def _check_package(name: str, minimum: str, installed_version: Callable[[str], str]) -> CheckResult:
    installed = _version_or_none(name, installed_version)
    if installed is None:
        return fail(name, "not installed", f"pip install '{name}>={minimum}'")
    if not is_at_least(installed, minimum):
        return fail(
            name, f"{installed} is older than {minimum}", f"pip install '{name}>={minimum}'"
        )
    return ok(name, installed)


def _version_or_none(name: str, installed_version: Callable[[str], str]) -> str | None:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None
