"""Every program of benchmarks/ runs: each is called once with the smallest sizes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from programs import find

from sentinel.cli._browser_picture import PROGRAMS, find_chromium

# Most run in one fixture.
pytestmark = pytest.mark.timeout(3600)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
WRITTEN = ("benchmarks", "docs")
"""Folders of the repository that benchmarks write to."""
STARTED_BY_OTHERS = {"fleet_nodes", "onsets"}
"""By `fleet`, and by tests/unit/benchmarks/test_onset_places.py."""
BROWSER = ("page_charts", "page_insight", "pages")
STACK = {"prometheus_delay": (("prometheus",), ("alertmanager", "prometheus-alertmanager"))}
"""Programs that they need, under any of their names."""
SMALLEST = {
    "prometheus_delay": "--changes 1 --interval 1s",
    "page_charts": "--steps 200 --ranks 2 --trials 1",
    "aggregation": "--ranks 2 --rounds 1 --seconds 0.1 --own-seconds 1 --rates 10",
    "healthy_pauses": "--minutes 0.02 --only steady",
    "notifications": "--repeats 1 --only healthy",
    "scrapes": "--pairs 3 --rate 10",
    "fleet": "--ranks 16 --signals 4 --seconds 2 --lead 4 --warmup 1 --imports 1 --anew",
    "comparison": "--quick --json comparison.json",
    "page_viewers": "--viewers 2 --seconds 1",
    "run_list": "50",
    "agent": "--ranks 1 --seconds 1",
    "agent_steps": "--ranks 1 --steps 20 --aligned 8 --aligned-steps 4",
    "backtest": "--families 1 --healthy 1 --severities severe --no-grid --jobs 1",
    "baseline_memory": "--families 1 --siblings 1",
    "capacity": "--ranks 2 --sizes 16x8 --scrapes 4 --series 200 --large-scrapes 4",
    "catching_up": "--ranks 1 --steps 200",
    "causes": "--made",
    "check_cost": "--trainings 1 --steps 2 --width 16",
    "combining": "--ranks 8 --steps 1",
    "departures": "--changes 2 --twins 2 --steps 120",
    "corrupted_replicas": "--seeds 2 --real 0 --only DistributedData",
    "detection": "--runs 1 --only ours --kinds sft",
    "engine": "--steps 80",
    "exits": "--exits 2",
    "exposition": "",
    "failing_runs": "logs --only vision-frozen",
    "gpu": "--dry --blocks 1 --steps 1",
    "gradient_flow": "--pairs 1 --width 16",
    "head": "--sizes 16x8 32x8 64x8 64x4 --steps 1",
    "healthy_trainings": "--only twin_zero_grad_missing --jobs 1",
    "hostile_calls": "--calls 200 --threads 2",
    "importance": "--part truth --functions additive --sets 1 --sizes 20",
    "kills": "--writers 2 --trainers 1 --agents 1",
    "layer_detection": "--seeds 1 --kinds sharpness",
    "log_instructions": "--dry --calls 5",
    "long_run": "--steps 500 --rows 1",
    "loss_surface": "--seeds 0 --minima 1 --network-fine 61",
    "page_insight": "--trials 1",
    "pages": "--steps 200 --metrics 2 --rounds 1 --tools sentinel",
    "patches": "--pairs 1 --steps 5",
    "rows": "--trainings 1",
    "rows_instructions": "--dry --steps 10",
    "report": "--steps 200 --ranks 2 --signals 3 --trials 1",
    "run_page": "--steps 200 --ranks 2 --repeats 1",
    "scale_page": "",
    "silent_errors": "--only zero_grad_missing --json silent_errors.json",
    "start": "--repeats 1 --only run status",
    "trajectory": "--parameters 1e4 --records 3 --seeds 1",
    "unresponsive_agent": "--logs 20",
    "verdicts": "--seeds 1 --faults kl_blowup",
}
"""Arguments of each program; those that take longest are first."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The repository, with copies of the folders that benchmarks write to."""
    root = tmp_path_factory.mktemp("repository")
    for path in ROOT.iterdir():
        if path.name in WRITTEN:
            shutil.copytree(path, root / path.name)
        elif not path.name.startswith("."):
            (root / path.name).symlink_to(path)
    return root


@pytest.fixture(scope="module")
def runs(repository, tmp_path_factory):
    """Exit code, output and seconds of each program whose needs are installed."""
    names = set(SMALLEST) - (set() if find_chromium() else set(BROWSER))
    names -= {
        name for name, needs in STACK.items() if not all(any(map(which, each)) for each in needs)
    }
    return run_programs(repository, names, tmp_path_factory.mktemp("runs"))


def run_programs(repository, names, folder):
    paths = [repository, repository / "tests", repository / "tests" / "stack"]
    own = {"SENTINEL_HOME": f"{folder}/home", "SENTINEL_RUNTIME_DIR": f"{folder}/rings"}
    command = [sys.executable, repository / "tests" / "support" / "benchmark_runs.py"]
    done = subprocess.run(
        [*command, repository / "benchmarks"],
        env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        input=json.dumps({name: SMALLEST[name].split() for name in SMALLEST if name in names}),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    runs = json.loads(done.stdout.splitlines()[-1])
    print(*sorted((run[2], name) for name, run in runs.items()), sep="\n")
    return runs


def test_every_program_is_listed():
    programs = {path.stem for path in FOLDER.glob("*.py") if '"__main__"' in path.read_text()}

    assert programs - STARTED_BY_OTHERS == set(SMALLEST)


@pytest.mark.parametrize("name", SMALLEST)
def test_the_program_runs(runs, name):
    if name in BROWSER:
        find(*PROGRAMS)
    for needed in STACK.get(name, ()):
        find(*needed)
    code, output, _ = runs[name]

    assert (code, "Traceback" in output) == (0, False), output[-3000:]
    assert output or name == "scale_page"


def test_the_head_of_a_fleet_stores_steps_of_simulated_nodes(runs):
    """On a busy machine some records may be late for their step."""
    assert re.search(r"^\| 16 \| 2 \|", runs["fleet"][1], re.MULTILINE), runs["fleet"][1]


def test_every_tool_of_the_comparison_can_be_measured(runs):
    """A tool that is missing is shown, and one whose interface has changed as well."""
    output = runs["comparison"][1]

    assert "| prometheus_client | floor |" in output
    assert "| failed |" not in output, output[-3000:]


def test_a_silent_error_is_named_and_its_healthy_twin_is_not(runs):
    """Of one published error: named, by the right reason, in its first steps."""
    row = r"^\| published \| 1 \| 1 \| 1 \| 1 \| \d \| 0 \|"
    assert re.search(row, runs["silent_errors"][1], re.MULTILINE), runs["silent_errors"][1]


def test_a_corrupted_replica_is_found(runs):
    assert "| DistributedDataParallel | 2 | 2 | 2 |" in runs["corrupted_replicas"][1]
