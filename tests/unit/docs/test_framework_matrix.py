"""The framework matrix names installed versions and existing tests."""

import re
from pathlib import Path

import pytest

from sentinel.doctor.frameworks import TESTED_VERSIONS

ROOT = Path(__file__).parents[3]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "frameworks.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| framework")
]
PINS = dict(
    re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
)
VERSIONS = dict(each.split() for _, listed, *_ in ROWS for each in listed.split(", "))


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_versions_are_those_that_the_tests_run_with(name):
    assert VERSIONS[name] == PINS[name]


def test_tests_named_exist():
    named = {name for *_, by in ROWS for name in re.findall(r"`([\w/*]+)`", by)}
    tests = ROOT / "tests"

    lost = [name for name in named if not [*tests.glob(f"{name}.py")]]

    assert len(named) > 10
    assert lost == []


def test_the_doctor_knows_the_same_versions():
    known = {name: high for name, (_, high) in TESTED_VERSIONS.items()}

    for name, version in VERSIONS.items():
        installed_as = {"mlflow-skinny": "mlflow"}.get(name, name)
        if installed_as in known:
            assert version.startswith(known[installed_as] + "."), name
    assert known.keys() & VERSIONS.keys() >= {"torch", "trl", "transformers", "deepspeed", "verl"}
