"""Settings of pytest for the whole repository."""

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without tests and doctests: some import a framework, which takes seconds."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return None if b">>>" in collection_path.read_bytes() else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector skip the tests and modules, of which nothing is ever freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # At 700 new objects, the default, the tests take a twentieth more time.
        gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, bound how many processes the tests start at the same time."""
    if config.option.dist != "loadfile":
        return None
    from support.scheduling import BoundedScheduling  # noqa: PLC0415 - where xdist is used only

    config.option.loadscopereorder = False
    return BoundedScheduling(config, log)
