"""The skill and the page name the tools that exist, and `sentinel assets` exports the skill."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.mcp_clients import list_tools

from sentinel.assets.export import rendered_files
from sentinel.mcp.server import make_server

ROOT = Path(__file__).parents[3]
SKILL = "deploy/agents/sentinel/SKILL.md"
SOURCE = SimpleNamespace(list_runs=dict, view=dict, path=dict)


@pytest.fixture(scope="module")
def tools():
    return list_tools(make_server(SOURCE, allow_actions=True))


def test_the_page_has_a_row_for_each_tool_with_its_arguments(tools):
    page = (ROOT / "docs" / "mcp.md").read_text()
    rows = dict(re.findall(r"`(\w+)\(([\w, ]*)\)`", page))

    assert {*rows} == {*tools}
    for name, arguments in rows.items():
        properties = {*tools[name].input_schema["properties"]} - {"detail"}
        assert {*arguments.split(", ")} == properties, name


def test_the_skill_is_exported_and_names_every_tool(tools):
    text = rendered_files(["agents"], {})[SKILL]
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    fields = dict(line.split(": ", 1) for line in front.splitlines())

    assert fields["name"] == "sentinel"
    assert len(fields["description"]) < 1024
    assert all(f"`{name}`" in body for name in tools)


def test_descriptions_have_no_indentation(tools):
    assert not any(re.search(r"\n|  ", each.description) for each in tools.values())
