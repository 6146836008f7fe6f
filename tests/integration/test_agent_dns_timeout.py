"""An agent's lookups of names: a silent DNS server holds it up for seconds, not for good."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, typer
from sentinel.cli.agent import agent
try:
    agent(run="../not-an-id", config=None)
except typer.Exit:
    print(os.environ["RES_OPTIONS"])
"""


@pytest.mark.parametrize(
    ("given", "then"),
    [({}, "timeout:1 attempts:2"), ({"RES_OPTIONS": "timeout:3"}, "timeout:3")],
    ids=["by default", "as the user set it"],
)
def test_an_agent_waits_for_names_for_a_short_time(given, then):
    environ = {name: value for name, value in os.environ.items() if name != "RES_OPTIONS"}
    words = [sys.executable, "-c", CODE]

    told = subprocess.run(
        words, env={**environ, **given}, capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == then
