"""`sentinel replay` applies the settings of the agent, and `--set` options."""

import pytest
from support.replays import collapse_rows, log, replay_lines, run_replay

__all__ = ["log"]


@pytest.fixture
def path(log, tmp_path, monkeypatch):
    """A log with a KL blow-up, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return log(collapse_rows())


def detectors(*arguments):
    return {line["detector"] for line in replay_lines(*arguments) if line["type"] == "incident"}


def test_settings_are_read_from_the_working_directory(path, tmp_path):
    assert "kl_blowup" in detectors(path)
    (tmp_path / "sentinel.toml").write_text('disable = ["kl_blowup"]\n')

    assert "kl_blowup" not in detectors(path)


def test_settings_are_read_from_variables(path, monkeypatch):
    monkeypatch.setenv("SENTINEL_DISABLE", "kl_blowup")

    assert "kl_blowup" not in detectors(path)


def test_settings_are_read_from_a_given_file(path, tmp_path):
    (tmp_path / "other.toml").write_text('disable = ["kl_blowup"]\n')

    assert "kl_blowup" not in detectors(path, "--config", "other.toml")


def test_set_options_change_detector_settings_and_override_the_file(path, tmp_path):
    (tmp_path / "sentinel.toml").write_text("[detectors.kl_blowup]\nlimit = 1e6\nratio = 2\n")
    options = [f"--set=detectors.kl_blowup.{name}=1e9" for name in ("ratio", "limit", "severe")]

    assert "kl_blowup" not in detectors(path, *options)
    assert "kl_blowup" in detectors(path, "--set", "detectors.kl_blowup.limit=0.1")


@pytest.mark.parametrize(
    "option", ["detectors.kl_blowup.ration=4", "detectors.kl_blowp.ratio=4", "detectors.kl_blowup"]
)
def test_an_invalid_set_option_is_one_line_and_exit_2(path, option):
    result = run_replay(path, "--json", "--set", option)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("sentinel replay: ")


@pytest.mark.parametrize("text", ["[detectors.kl_blowup]\nration = 4", "prot = 1", "port = 'x'"])
def test_an_invalid_settings_file_is_one_line_and_exit_2(path, tmp_path, text):
    (tmp_path / "sentinel.toml").write_text(text)
    result = run_replay(path, "--json")

    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert "sentinel.toml" in result.stderr


def test_no_file_with_a_secret_is_opened(path, tmp_path):
    (tmp_path / "sentinel.toml").write_text('[sinks.slack]\nurl_file = "/nowhere"\n')

    assert run_replay(path).exit_code == 0
