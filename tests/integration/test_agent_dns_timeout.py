"""DNS timeout of an agent: a server that does not answer delays it by seconds only."""

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
    ("environ", "expected"),
    [({}, "timeout:1 attempts:2"), ({"RES_OPTIONS": "timeout:3"}, "timeout:3")],
    ids=["default", "set_by_user"],
)
def test_the_resolver_timeout_is_short_unless_the_user_set_it(environ, expected):
    base = {name: value for name, value in os.environ.items() if name != "RES_OPTIONS"}
    command = [sys.executable, "-c", CODE]

    done = subprocess.run(
        command, env={**base, **environ}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == expected
