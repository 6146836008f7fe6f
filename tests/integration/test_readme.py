"""Every code block of the README works with the built wheel, outside the repository."""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from support.rank_processes import has_ended, until
from support.stored_homes import write_run
from support.webhook_receiver import Receiver

from sentinel.store.database import connect
from sentinel.store.history import History

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, block in BLOCKS
    if kind == ""
    for line in block.strip().splitlines()
]
RUN_TIMEOUT_SECONDS = 300.0
STEPS = 60


def code(kind: str) -> str:
    """The only block of that language."""
    (block,) = (text for language, text in BLOCKS if language == kind)
    return block


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A folder with the built distribution, unpacked as pip installs it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=RUN_TIMEOUT_SECONDS)
    (built,) = folder.glob("train_sentinel-*.whl")
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(built)], check=True, timeout=240)
    return target


@pytest.fixture
def folder(wheel, tmp_path, monkeypatch):
    """A working directory with what the commands of the README name."""
    with Receiver() as receiver:
        (tmp_path / "url").write_text(receiver.url)
        settings = code("toml").replace("/run/secrets/slack_webhook", str(tmp_path / "url"))
        (tmp_path / "sentinel.toml").write_text(settings)
        (tmp_path / "train.py").write_text(code("python"))
        rows = [{"step": step, "loss": 2.0 / step**0.5, "kl": 0.01} for step in range(1, STEPS)]
        (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        state = {"log_history": rows, "global_step": STEPS, "max_steps": STEPS}
        (tmp_path / "trainer_state.json").write_text(json.dumps(state))
        (tmp_path / "runs" / "my-run").mkdir(parents=True)
        (tmp_path / "runs" / "my-run" / "trainer_state.json").write_text(json.dumps(state))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(wheel))
        monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        programs = [str(wheel / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        monkeypatch.setenv("PATH", os.pathsep.join(programs))
        yield tmp_path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the working directory and capture what it prints."""
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_SECONDS
    )


def sentinel(line: str) -> subprocess.CompletedProcess[str]:
    """Run a `sentinel` command line of the README with the installed wheel."""
    command, *arguments = shlex.split(line)
    assert command == "sentinel"
    return run(sys.executable, "-P", "-m", "sentinel", *arguments)


def test_every_command_of_the_readme_is_tested_here():
    assert COMMANDS == [
        "pip install train-sentinel",
        "sentinel status",
        "sentinel notify test",
        "sentinel doctor",
        "sentinel assets export monitoring --for prometheus --for grafana",
        "sentinel run -- torchrun --nproc-per-node 8 train.py",
        "sentinel preflight -- python train.py",
        "sentinel watch runs/my-run",
        "sentinel replay trainer_state.json",
        "sentinel inspect nohup.out",
        "sentinel serve runs/",
        "sentinel report my-run -o report.html",
        "sentinel compare older-run my-run",
        "sentinel replay log.jsonl --set detectors.kl_blowup.ratio=4 --fail-on critical",
        "make demo",
        "make test",
    ]


def test_the_wheel_installs_the_package_and_its_command(wheel, folder):
    where = run(sys.executable, "-P", "-c", "import sentinel; print(sentinel.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(wheel)
    assert (wheel / "bin" / "sentinel").is_file()
    with zipfile.ZipFile(next(wheel.parent.glob("*.whl"))) as archive:
        names = archive.namelist()
    assert "sentinel/py.typed" in names
    assert "sentinel/web/static/sections/cases.js" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_the_python_block_is_recorded_and_listed_by_status(folder):
    os.environ.pop("SENTINEL_LINGER_SECONDS")
    trained = run(sys.executable, "-P", "train.py")
    assert (trained.returncode, trained.stderr) == (0, "")

    status = sentinel("sentinel status")

    assert status.returncode == 0
    assert "first-run" in status.stdout
    database = next((Path(os.environ["SENTINEL_HOME"]) / "runs").glob("*/sentinel.db"))
    assert database.is_file()


def test_the_training_of_the_python_block_has_no_problem_however_long_it_is(folder):
    script = (folder / "train.py").read_text().replace("steps=200", "steps=4000")
    (folder / "train.py").write_text(script)
    trained = run(sys.executable, "-P", "train.py")
    assert (trained.returncode, "4000" in script) == (0, True)
    (directory,) = (Path(os.environ["SENTINEL_HOME"]) / "runs").iterdir()
    until(lambda: has_ended(directory), RUN_TIMEOUT_SECONDS, "the agent has ended")

    with closing(connect(directory / "sentinel.db")) as database:
        incidents = History(database).incidents()
    assert [each for each in incidents if each["severity"] != "info"] == []


def test_the_settings_block_reaches_the_receiver(folder):
    sent = sentinel("sentinel notify test")

    assert sent.returncode == 0, sent.stdout + sent.stderr


@pytest.mark.parametrize(
    # Of the frameworks, whose import takes twelve seconds of a processor, test_doctor_checks.
    "line",
    [pytest.param("sentinel doctor", marks=pytest.mark.full), "sentinel doctor --quick"],
)
def test_doctor_reports(line, folder):
    assert sentinel(line).returncode in {0, 1}


def test_the_wheel_contains_the_assets(folder):
    (line,) = (each for each in COMMANDS if each.startswith("sentinel assets"))
    done = sentinel(line)

    assert done.returncode == 0, done.stderr
    for path in ("deploy/prometheus/rules.yml", "grafana/dashboards/run-health.json"):
        assert (folder / "monitoring" / path).read_text() == (ROOT / path).read_text()


def test_run_monitors_a_command(folder):
    done = sentinel("sentinel run -- torchrun --nproc-per-node 2 train.py")

    assert done.returncode == 0, done.stderr[-4000:]


def test_preflight_measures_the_first_updates(folder):
    before = sorted(folder.iterdir())
    done = sentinel("sentinel preflight -- python train.py")

    assert done.returncode == 0, done.stderr
    assert "Reported at step 8 by rank 0." in done.stdout
    assert "updates were measured" in done.stdout
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("line", [each for each in COMMANDS if each.startswith("sentinel replay")])
def test_replay_evaluates_a_log(line, folder):
    done = sentinel(line)

    assert done.returncode == 0, done.stderr
    assert "No incident" in done.stdout


def test_inspect_shows_how_console_output_is_understood(folder):
    (folder / "nohup.out").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    done = sentinel("sentinel inspect nohup.out")

    assert done.returncode == 0, done.stderr
    assert "Format: Console output" in done.stdout


def test_report_and_compare_read_stored_runs(folder):
    for run_id in ("my-run", "older-run"):
        write_run(Path(os.environ["SENTINEL_HOME"]), run=run_id, steps=30)
    report, comparison = (
        sentinel(line)
        for line in COMMANDS
        if line.startswith(("sentinel report", "sentinel compare"))
    )

    assert report.returncode == 0, report.stderr
    assert "my-run" in (folder / "report.html").read_text()
    assert comparison.returncode == 0, comparison.stderr
    assert "older-run" in comparison.stdout


def test_watch_follows_a_log(folder):
    watch = subprocess.Popen(
        [sys.executable, "-P", "-m", "sentinel", "watch", "runs/my-run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        home = Path(os.environ["SENTINEL_HOME"])
        until(lambda: [*home.glob("runs/*/agent.json")] or watch.poll() == 0, 240.0, "it serves")
    finally:
        watch.terminate()
        watch.communicate(timeout=240)


def test_serve_shows_the_logs_of_a_folder(folder):
    command = [sys.executable, "-P", "-m", "sentinel", "serve", "runs/"]
    serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = serve.stdout.readline()
        url = re.search(r"http://\S+", line)[0]
        listed = urlopen(f"{url}api/runs", timeout=240).read().decode()
    finally:
        serve.terminate()
        serve.communicate(timeout=240)

    assert "my-run" in listed


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_the_goals_of_make_exist(goal):
    planned = subprocess.run(
        ["make", "--dry-run", goal], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert planned.returncode == 0
