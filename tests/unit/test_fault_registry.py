"""`tests/chaos/faults.toml` and the markers of the tests name the same tests."""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REGISTRY = tomllib.loads((ROOT / "tests" / "chaos" / "faults.toml").read_text())
FAULTS = {fault["id"]: fault for fault in REGISTRY["fault"]}
NUMBERS = {"P": 31, "R": 14, "T": 18, "A": 28, "S": 22, "D": 23, "H": 10, "I": 15, "X": 19}
"""The number of faults of each letter."""


def marks(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Name and texts of each pytest.mark in an expression, the outermost first."""
    texts = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            texts[each.func] = [a.value for a in each.args if isinstance(a, ast.Constant)]
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "pytest.mark":
            yield each.attr, texts.get(each, [])


def marked_tests(path: Path, source: str) -> dict[str, tuple[set[str], set[str]]]:
    """Fault ids and names of all markers of each test of a file, by node id."""
    tree = ast.parse(source)
    shared = [
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in marks(node.value)
    ]
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = shared + [mark for each in node.decorator_list for mark in marks(each)]
            ids = {text for name, texts in own if name == "fault" for text in texts}
            # Marks of single parameters leave the others as they are.
            direct = [next(marks(each), ("", []))[0] for each in node.decorator_list]
            found[f"{path}::{node.name}"] = (ids, {name for name, _ in shared} | {*direct} - {""})
    return found


@cache
def all_tests() -> dict[str, tuple[set[str], set[str]]]:
    """Fault ids and markers of every test, by node id."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found |= marked_tests(path.relative_to(ROOT), path.read_text())
    return found


def test_the_registry_has_every_fault_once_and_in_order():
    expected = [f"{letter}{n}" for letter, last in NUMBERS.items() for n in range(1, last + 1)]

    assert [fault["id"] for fault in REGISTRY["fault"]] == expected


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_described_and_names_tests_or_a_gap(fault):
    assert set(fault) == {"id", "title", "required", "tier", "tests", "gap"}
    assert fault["title"]
    assert fault["required"].endswith(".")
    assert fault["tests"] + [fault["gap"]] != [""]
    assert fault["tier"] in ("smoke", "full")
    assert [test for test, count in Counter(fault["tests"]).items() if count > 1] == []


def test_every_listed_test_exists_and_is_marked():
    listed = {test: {i for i, f in FAULTS.items() if test in f["tests"]} for test in _listed()}

    assert [test for test in listed if test not in all_tests()] == []
    assert {t: ids for t, ids in listed.items() if not ids <= all_tests()[t][0]} == {}


def test_every_marked_test_is_listed():
    marked = {test: ids for test, (ids, _) in all_tests().items() if ids}
    unlisted = {
        test: missing
        for test, ids in marked.items()
        if (missing := {i for i in ids if i not in FAULTS or test not in FAULTS[i]["tests"]})
    }

    assert unlisted == {}


def test_a_fault_of_the_smoke_tier_has_a_test_in_make_test():
    names = {test: markers for test, (_, markers) in all_tests().items()}
    for fault_id, fault in FAULTS.items():
        if fault["tests"]:
            runs = any(not names[test] & {"full", "nodes"} for test in fault["tests"])
            assert runs == (fault["tier"] == "smoke"), fault_id


def test_markers_are_found_wherever_pytest_accepts_them():
    source = """
pytestmark = [pytest.mark.chaos, pytest.mark.fault("P1")]

@pytest.mark.full
@pytest.mark.fault("P2", "A1")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("I1"))])
def test_one(x): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.full)])
def test_two(x): ...
"""

    assert marked_tests(Path("t.py"), source) == {
        "t.py::test_one": (
            {"P1", "P2", "A1", "I1"},
            {"chaos", "fault", "full", "parametrize"},
        ),
        "t.py::test_two": ({"P1"}, {"chaos", "fault", "parametrize"}),
    }


def _listed() -> set[str]:
    return {test for fault in FAULTS.values() for test in fault["tests"]}
