"""docs/settings.md lists exactly the existing settings."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sentinel.config import plugins
from sentinel.config.config_sources import read_sources
from sentinel.config.route import Route
from sentinel.config.settings import ClusterSettings, Settings, load_settings

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under that heading, without backticks and without the head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_setting_is_there_with_its_default():
    listed = {name: default for name, default, _ in rows("Reference")}
    assert len(listed) == len(rows("Reference"))
    plain = Settings().model_dump()

    assert listed == {
        name: "none" if is_none(value) else str(value) for name, value in plain.items()
    }


def is_none(value) -> bool:
    """Whether nothing is set; of a table, whether nothing in it is."""
    return not (any(value.values()) if isinstance(value, dict) else value)


def test_every_cluster_setting_is_listed():
    listed = {name: default for name, default, _ in rows("Several nodes")}

    assert listed.keys() == ClusterSettings.model_fields.keys()
    assert {*listed.values()} == {"none", "false"}


def test_listed_sink_settings_exist():
    kinds = plugins.load_classes("sinks")
    unknown = [
        (sink, setting)
        for sink, setting, _ in rows("Sinks")
        if setting not in {field.name for field in fields(kinds[sink])}
    ]

    assert rows("Sinks")
    assert unknown == []


def test_every_setting_of_a_route_is_listed_with_its_default():
    listed = {name: default for name, default, _ in rows("Routes")}

    assert listed == {name: f"{value}" or "none" for name, value in Route() if value} | {
        name: "none" for name, value in Route() if not value
    }


def test_the_example_file_is_accepted(tmp_path):
    """As it stands, but for the secrets, which lie elsewhere here."""
    (secret := tmp_path / "secret").write_text("https://hooks.example.org/T0/B0")
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "sentinel.toml").write_text(re.sub(r'"/run/secrets/\w+"', f'"{secret}"', example))
    settings = load_settings(environ={}, cwd=tmp_path)

    assert sorted(settings.sinks) == ["night_shift", "slack"]
    assert settings.disable == ["loss_plateau"]


@pytest.mark.parametrize("row", rows("Further environment variables"))
def test_further_variables_are_not_settings(row, tmp_path):
    environ = {row[0]: str(tmp_path / "absent")} if row[0] != "SENTINEL_CONFIG" else {}

    assert read_sources({}, environ, tmp_path).tree == {}
