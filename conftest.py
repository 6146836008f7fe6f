"""Settings of pytest for the whole repository."""

from pathlib import Path

TESTS = Path(__file__).parent / "tests"

# These modules import their framework, which may not be installed.
collect_ignore_glob = ["sentinel/integrations/callbacks/*"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Helper modules of the tests contain no doctests, and some import a framework."""
    is_helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_helper and collection_path.is_relative_to(TESTS) else None
