"""The examples in CONTRIBUTING.md work as they stand: one file each, and nothing else edited."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text()))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the repository with the examples dropped into their rooms."""
    root = tmp_path_factory.mktemp("contributed")
    for name in ("sentinel", "tests", "docs", "deploy", "grafana"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, root / name)
    for path, code in EXAMPLES.items():
        (root / path).write_text(code)
    return root


def ask(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the tree, its own package before any that is installed."""
    asked = [sys.executable, "-m", *words]
    return subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=False, timeout=600)


ROOMS = [path for path in EXAMPLES if path.startswith("sentinel/")]


def test_there_is_an_example_of_a_detector_and_of_a_sink():
    assert sorted(path.split("/")[1] for path in ROOMS) == ["detectors", "sinks"]


@pytest.mark.parametrize("path", ROOMS)
def test_the_example_is_held_to_the_same_contract_as_ours(path, tree):
    room, name = path.removesuffix(".py").split("/")[1:]
    told = ask(tree, "pytest", "-q", f"tests/test_every_{room[:-1]}.py", "-k", name)

    assert told.returncode == 0, told.stdout
    assert int(re.search(r"(\d+) passed", told.stdout)[1]) >= 1


def test_the_example_s_own_test_passes(tree):
    told = ask(tree, "pytest", "-q", "tests/test_entropy_floor.py")

    assert "2 passed" in told.stdout


def test_the_examples_keep_the_rules_of_the_house(tree):
    told = ask(tree, "pytest", "-q", "tests/test_house.py", "-k", "the_house_keeps")

    assert told.returncode == 0, told.stdout


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_are_in_our_style(path, tree):
    assert ask(tree, "ruff", "check", path).returncode == 0
    assert ask(tree, "ruff", "format", "--check", path).returncode == 0


def test_a_new_detector_has_a_rule_a_runbook_and_settings(tree):
    """And until they are written, `make test` says which files are old."""
    stale = ask(tree, "sentinel.generate", "--check")
    written = ask(tree, "sentinel.generate")

    assert "docs/runbooks/entropy_floor.md" in stale.stderr
    assert written.returncode == 0
    assert "`floor`" in (tree / "docs/runbooks/entropy_floor.md").read_text()
    assert "entropy_floor" in (tree / "deploy/prometheus/rules.yml").read_text()


def test_a_new_detector_finds_what_it_is_for(tree):
    log = tree / "log.jsonl"
    log.write_text(
        "".join(f'{{"step": {n}, "entropy": {2 if n < 50 else 0.01}}}\n' for n in range(90))
    )
    told = ask(tree, "sentinel", "replay", str(log), "--json")

    assert '"detector": "entropy_floor"' in told.stdout
    assert '"opened_step": 58' in told.stdout
