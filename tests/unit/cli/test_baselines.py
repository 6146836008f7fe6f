"""`sentinel baselines`, and `sentinel replay --baselines`."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.transport.paths import home_dir


@pytest.fixture
def healthy_log(tmp_path, monkeypatch):
    """Writes healthy logs of one project; returns the path of a log by its number."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()

    def write(number):
        rng = np.random.default_rng(number)
        kl = 0.1 * np.linspace(0.01, 1, 200) ** 1.5 * np.exp(0.3 * rng.standard_normal(200))
        rows = [{"step": step, "kl": value} for step, value in enumerate(kl, 1)]
        path = folder / f"run{number}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_replay_stores_nothing_unless_it_is_asked_to(healthy_log):
    run("replay", healthy_log(1))
    assert "No baseline is stored" in run("baselines", "list").stdout


def test_logs_of_one_folder_form_a_baseline(healthy_log):
    for number in (1, 2):
        log = healthy_log(number)
        assert run("replay", log, "--baselines").exit_code == 0
    (listed,) = map(json.loads, run("baselines", "list", "--json").stdout.splitlines())
    assert listed["runs"] == ["run1", "run2"]
    assert listed["configuration"] == {"project": str(log.parent)}
    assert listed["signals"] == ["kl_ref"]
    assert f"{log.parent}  2 runs, newest" in run("baselines", "list").stdout
    exported = json.loads(run("baselines", "export", listed["id"]).stdout)
    assert [each["run"] for each in exported["runs"]] == ["run1", "run2"]
    assert run("baselines", "forget", listed["id"]).exit_code == 0
    assert run("baselines", "list", "--json").stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [("export", "0123456789ab"), ("forget", "../x"), ("forget",), ("forget", "x", "--all")],
)
def test_a_wrong_argument_exits_with_2_and_says_what_to_do(healthy_log, arguments):
    result = run("baselines", *arguments)
    assert result.exit_code == 2
    assert "sentinel baselines" in result.stderr


def test_forget_all_deletes_damaged_files_too(healthy_log):
    run("replay", healthy_log(1), "--baselines")
    (path,) = (home_dir() / "baselines").glob("*.json")
    path.write_text("{")
    assert "1 baseline deleted" in run("baselines", "forget", "--all").stdout
    assert not path.exists()
