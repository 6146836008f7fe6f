"""Skips tests whose framework is not installed, or fails them if it is required."""

import os
from importlib.util import find_spec

import pytest

REQUIRED = os.environ.get("SENTINEL_REQUIRE_FRAMEWORKS", "0") not in {"", "0"}
"""Read at import, since tests do not inherit SENTINEL_*."""


def need(*frameworks: str) -> None:
    """Called at the top of a test module, with the names of packages it imports in its tests.

    Where one is missing the module is skipped, with a message; it fails if
    $SENTINEL_REQUIRE_FRAMEWORKS is set.
    """
    missing = [name for name in frameworks if find_spec(name) is None]
    if not missing:
        return
    message = f"not installed: {', '.join(missing)}"
    if REQUIRED:
        pytest.fail(f"SENTINEL_REQUIRE_FRAMEWORKS is set, but {message}", pytrace=False)
    pytest.skip(message, allow_module_level=True)
