"""The examples in CONTRIBUTING.md work unchanged: one file each, and nothing else is edited."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.fork_server import TORCH

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text()))
PLUGINS = {
    "sentinel/detectors/entropy_floor.py": "tests/unit/detectors/test_every_detector.py",
    "sentinel/sinks/mattermost.py": "tests/unit/sinks/test_every_sink.py",
    "sentinel/readers/fairseq.py": "tests/unit/readers/test_every_reader.py",
    "sentinel/integrations/weight_averaging.py": "tests/frameworks/test_every_integration.py",
}
"""Conformance test by the path of the example."""
OWN_TEST = "tests/unit/detectors/test_entropy_floor.py"
"""A test that is itself an example."""

NAN_AFTER_300 = "".join(
    "2026-01-31 12:00:00 | INFO | train_inner | "
    f'{{"num_updates": "{step}", "loss": "{2.0 if step < 300 else "nan"}"}}\n'
    for step in range(1, 400)
)

AVERAGED_TRAINING = """
import torch, sentinel

@sentinel.monitor(run="averaged", agent=False, strict=True)
def train():
    model = torch.nn.Linear(2, 1)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        averaged.update_parameters(model)
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        sentinel.log({"x": 1.0}, step=step)

train()
from support.recorded_rings import read_rings
print(*(r.values["averaging_updates"] for r in read_rings()[0] if "averaging_updates" in r.values))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the repository with the examples added to it."""
    root = tmp_path_factory.mktemp("contributed")
    for name in ("sentinel", "tools", "tests", "docs", "deploy", "grafana"):
        # With the compiled files, which stay valid: times and sizes of the sources are copied too.
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", "CONTRIBUTING.md", "conftest.py"):
        shutil.copy(ROOT / name, root / name)
    for path, code in EXAMPLES.items():
        (root / path).write_text(code)
    return root


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m` in the tree, whose package precedes any installed one."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=False, timeout=600
    )


def test_there_is_an_example_of_every_kind():
    assert sorted(path for path in EXAMPLES if path.startswith("sentinel/")) == sorted(PLUGINS)


@pytest.fixture(scope="module")
def conformance(tree):
    """The result of pytest for the tests of all examples: its start takes longer than they do."""
    names = " or ".join(Path(path).stem for path in PLUGINS)
    return run(tree, "pytest", "-q", "-rA", *PLUGINS.values(), OWN_TEST, "-k", names)


def passed(conformance: subprocess.CompletedProcess[str], file: str) -> int:
    """The number of tests of that file that passed."""
    return conformance.stdout.count(f"\nPASSED {file}::")


@pytest.mark.parametrize("path", PLUGINS)
def test_an_example_passes_the_conformance_test_of_its_kind(path, conformance):
    assert conformance.returncode == 0, conformance.stdout
    assert passed(conformance, PLUGINS[path]) >= 1


def test_the_test_of_the_example_passes(conformance):
    assert passed(conformance, OWN_TEST) == 2, conformance.stdout


def test_the_examples_have_clean_style_and_types(tree):
    assert run(tree, "ruff", "check", *EXAMPLES).stdout == "All checks passed!\n"
    assert run(tree, "ruff", "format", "--check", *EXAMPLES).returncode == 0
    # `make test` checks the types beside the first tests, so most results are there already.
    types = run(tree, "mypy", f"--cache-dir={ROOT / '.mypy_cache'}", *PLUGINS)
    assert types.returncode == 0, types.stdout


def test_a_new_detector_gets_a_rule_a_runbook_and_settings(tree):
    """Until they are written, `make lint` names the stale files."""
    stale = run(tree, "tools.generate", "--check")
    written = run(tree, "tools.generate")

    assert "docs/runbooks/entropy_floor.md" in stale.stderr
    assert written.returncode == 0
    assert "`floor`" in (tree / "docs/runbooks/entropy_floor.md").read_text()
    assert "entropy_floor" in (tree / "deploy/prometheus/rules.yml").read_text()


def test_a_new_detector_finds_its_fault(tree):
    log = tree / "log.jsonl"
    log.write_text(
        "".join(f'{{"step": {n}, "entropy": {2 if n < 50 else 0.01}}}\n' for n in range(90))
    )
    result = run(tree, "sentinel", "replay", str(log), "--json")

    assert '"detector": "entropy_floor"' in result.stdout
    assert '"opened_step": 58' in result.stdout


def test_a_new_reader_is_used_by_replay(tree):
    (tree / "train.log").write_text("a line of another kind\n" + NAN_AFTER_300 + "torn | {\n")

    result = run(tree, "sentinel", "replay", "train.log", "--json")

    assert '"detector": "nan_or_inf"' in result.stdout
    assert '"opened_step": 300' in result.stdout


def test_a_new_integration_records_its_values(tree, fork_server, tmp_path):
    script, log = tmp_path / "train.py", tmp_path / "output"
    script.write_text(AVERAGED_TRAINING)
    environ = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'tests'}"}
    with log.open("w") as output:
        fork_server(*TORCH).start([script], env=environ, cwd=tree, output=output).wait(300)

    assert log.read_text().split() == ["1.0", "2.0", "3.0"]
