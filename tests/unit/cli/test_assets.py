"""`sentinel assets`, in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sentinel.assets import export
from sentinel.assets.option import OPTIONS
from sentinel.cli.main import app

PROMETHEUS = "out/deploy/prometheus/prometheus.yml"
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """Run `sentinel assets` with these arguments in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))

    def run(*arguments, status=0):
        result = CliRunner().invoke(app, ["assets", *arguments])
        assert result.exit_code == status, result.output
        return result.output

    return run


def files_below(directory):
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in paths}


def test_the_files_are_exported_with_the_options(assets, tmp_path):
    options = ["--set", "prometheus.cluster=west", "--set", "kubernetes.run=dpo"]
    assets("export", "out", "--for", "prometheus", "--for", "kubernetes", *options)

    config = yaml.safe_load((tmp_path / "out/deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert config["global"]["external_labels"] == {"cluster": "west"}
    assert job["file_sd_configs"][0]["files"] == [f"{tmp_path}/home/targets/*.json"]
    assert "authorization" not in job
    pod = yaml.safe_load((tmp_path / "out/deploy/kubernetes/job/job.yaml").read_text())
    assert pod["metadata"]["name"] == "dpo"
    rules = "deploy/prometheus/rules.yml"
    assert (tmp_path / "out" / rules).read_text() == (REPOSITORY / rules).read_text()
    assert not (tmp_path / "out" / "grafana" / "provisioning").exists()
    assert (
        assets("export", "out", "--check") == "All files are as they were exported, and current.\n"
    )


def test_the_address_of_the_pages_in_the_settings_is_that_of_the_dashboards(assets, tmp_path):
    (tmp_path / "sentinel.toml").write_text('public_url = "https://training.example.org/"')
    assets("export", "out", "--for", "grafana")

    board = json.loads((tmp_path / "out/grafana/dashboards/fleet.json").read_text())
    (page,) = (each for each in board["templating"]["list"] if each["name"] == "page")
    assert page["query"] == "https://training.example.org"


def test_the_token_file_of_the_settings_is_that_of_prometheus(assets, tmp_path):
    (tmp_path / "sentinel.toml").write_text('token_file = "/etc/sentinel/token"')
    assets("export", "out", "--for", "prometheus")

    config = yaml.safe_load((tmp_path / "out/deploy/prometheus/prometheus.yml").read_text())
    assert config["scrape_configs"][0]["authorization"] == {
        "credentials_file": "/etc/sentinel/token"
    }


def test_paths_of_the_settings_are_those_of_the_directory_of_the_agents(
    assets, tmp_path, monkeypatch
):
    monkeypatch.setenv("SENTINEL_HOME", "home")
    (tmp_path / "sentinel.toml").write_text('token_file = "secrets/token"')
    assets("export", "out", "--for", "prometheus")

    config = yaml.safe_load((tmp_path / "out/deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["file_sd_configs"][0]["files"] == [f"{tmp_path}/home/targets/*.json"]
    assert job["authorization"] == {"credentials_file": f"{tmp_path}/secrets/token"}


def test_a_setting_that_no_file_can_hold_is_refused_where_a_file_contains_it(assets, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", "/srv/our runs")
    assets("export", "out", "--for", "slurm")

    assert "prometheus.targets" in assets("export", "out", "--for", "prometheus", status=2)


def test_links_to_the_documentation_lead_to_it(assets, tmp_path):
    assets("export", "out", "--for", "systemd")

    readme = (tmp_path / "out/deploy/README.md").read_text()
    assert "](../docs" not in readme
    assert "/blob/main/docs/settings.md#access)" in readme


def test_a_later_export_keeps_targets_and_options(assets, tmp_path):
    assets("export", "out", "--for", "kubernetes", "--set", "kubernetes.run=dpo")
    assets("export", "out", "--for", "systemd", "--set", "kubernetes.gpus=2")

    pod = (tmp_path / "out/deploy/kubernetes/job/job.yaml").read_text()
    assert "name: dpo" in pod
    assert "nvidia.com/gpu: 2" in pod
    assert (tmp_path / "out/deploy/systemd").is_dir()


def test_an_option_is_set_back_to_its_default(assets, tmp_path):
    """That of the settings, or that of the files."""
    (tmp_path / "sentinel.toml").write_text('token_file = "/etc/sentinel/token"')
    assets("export", "out", "--for", "prometheus", "--for", "systemd")
    before = files_below(tmp_path / "out")
    token = "prometheus.token_file"
    assets("export", "out", "--set", f"{token}=/run/token", "--set", "systemd.user=ml")
    assert files_below(tmp_path / "out") != before

    assets("export", "out", "--unset", token, "--unset", "systemd.user")
    assert files_below(tmp_path / "out") == before
    (tmp_path / "sentinel.toml").unlink()
    assets("export", "out")
    assert files_below(tmp_path / "out") == before
    assets("export", "out", "--unset", token)
    assert "\n    authorization" not in (tmp_path / PROMETHEUS).read_text()


def test_a_file_that_was_changed_by_hand_is_replaced_by_force_only(assets, tmp_path):
    assets("export", "out", "--for", "prometheus")
    changed = tmp_path / "out/deploy/prometheus/prometheus.yml"
    changed.write_text("# mine")
    before = files_below(tmp_path / "out")

    output = assets("export", "out", "--set", "prometheus.cluster=west", status=1)
    assert output.startswith("changed  deploy/prometheus/prometheus.yml")
    assert "--force" in output
    assert files_below(tmp_path / "out") == before
    shown = json.loads(assets("export", "out", "--check", "--json", status=1))
    assert shown == {"path": "deploy/prometheus/prometheus.yml", "state": "changed"}

    assert "wrote  deploy/prometheus/prometheus.yml" in assets("export", "out", "--force")
    assets("export", "out", "--check")


def test_a_file_that_was_there_before_is_not_replaced(assets, tmp_path):
    (tmp_path / "out/deploy/prometheus").mkdir(parents=True)
    (tmp_path / "out/deploy/prometheus/rules.yml").write_text("groups: []")

    assets("export", "out", "--for", "prometheus", status=1)
    assert [*files_below(tmp_path / "out")] == ["deploy/prometheus/rules.yml"]


def test_a_check_lists_what_is_missing_and_what_a_later_version_would_write(
    assets, tmp_path, monkeypatch
):
    assets("export", "out", "--for", "systemd", "--for", "grafana")
    (tmp_path / "out/grafana/README.md").unlink()
    newer = tmp_path / "newer"
    for path, text in files_below(tmp_path / "out").items():
        (newer / path).parent.mkdir(parents=True, exist_ok=True)
        (newer / path).write_text(text)
    (newer / "grafana/README.md").write_text("x")
    (newer / "deploy/systemd/sentinel-agent@.service").write_text("[Unit]\n")
    (newer / "deploy/systemd/sentinel-training@.service").unlink()
    monkeypatch.setattr(export, "_root", lambda: newer)

    assert assets("export", "out", "--check", status=1).splitlines() == [
        "outdated deploy/systemd/sentinel-agent@.service",
        "outdated deploy/systemd/sentinel-training@.service",
        "missing  grafana/README.md",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out"], "name at least one target with --for: prometheus, vmalert,"),
        (["out", "--for", "kubernets"], 'Did you mean "kubernetes"?'),
        (["out", "--for", "systemd", "--set", "systemd.usr=x"], 'Did you mean "systemd.user"?'),
        (["out", "--for", "systemd", "--unset", "systemd.usr"], 'Did you mean "systemd.user"?'),
        (["out", "--check", "--unset", "systemd.user"], "--check compares all"),
        (["out", "--check"], "nothing was exported to it"),
        (["file", "--for", "systemd"], "file"),
        (["invalid", "--for", "systemd"], "is not a manifest of exported files"),
        (["out", "--check", "--set", "systemd.user=x"], "--check compares all"),
        (["cut", "--check"], "cut/sentinel-assets.json is not a manifest of exported files"),
        (["out", "--for", "systemd", "--config", "none.toml"], "none.toml"),
    ],
)
def test_wrong_usage_is_refused_with_a_remedy(assets, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    for name, text in {"invalid": '{"targets": 1}', "cut": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / export.MANIFEST_NAME).write_text(text)
    before = files_below(tmp_path)

    assert message in assets("export", *arguments, status=2)
    assert files_below(tmp_path) == before


def test_the_list_names_every_target_file_and_option(assets):
    output = assets("list")
    listed = [json.loads(line) for line in assets("list", "--json").splitlines()]

    assert {each["target"] for each in listed if "target" in each} == {*export.TARGETS}
    for each in listed:
        names = each["files"] if "target" in each else [each["option"], each["meaning"]]
        assert all(name in output for name in names)


def test_the_documentation_names_every_target_and_option():
    text = (REPOSITORY / "docs/assets.md").read_text()
    for option in OPTIONS:
        group, name = option.name.split(".")
        assert f"`{option.name}`" in text or (f"`{group}." in text and f"`.{name}`" in text)
    assert all(f"| `{target}` |" in text for target in export.TARGETS)
