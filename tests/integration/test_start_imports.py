"""What each command, the agent and the guard of a command import at their start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMMAND = """
import sys
from sentinel.__main__ import main
sys.argv[0] = "sentinel"
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""

DISPATCHER = """
import sys
from pathlib import Path
from sentinel.config.settings import build_sinks, load_settings
from sentinel.model.counters import Counters
import sentinel.cli._agent_service
from sentinel.notify.dispatcher import Dispatcher
sinks = {name: {"url": "https://example.org/hook"} for name in sys.argv[1:]}
Dispatcher(Path("unused.db"), build_sinks(load_settings({"sinks": sinks})), Counters())
print(*sys.modules, file=sys.stderr)
"""

FOLLOWER = """
import sys
from pathlib import Path
from sentinel.cluster.agent_role import AgentRole
from sentinel.model.counters import Counters
from sentinel.store.database import connect
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import Rendezvous
identity = Identity("r", 0, 2, 0, 4, 2, "b", Rendezvous("127.0.0.1", "29500", "job", 1))
role = AgentRole("r", connect(Path("r.db")), Counters(), lambda: identity)
role.exchange([])
role.stop()
assert role.role == "follower"
print(*sys.modules, file=sys.stderr)
"""

SERVE = """
import os, sys
os.environ["SENTINEL_HOME"] = "home"
from sentinel.agent.dead_run_closer import DeadRunCloser
from sentinel.agent.serve_registration import register_server
from sentinel.cli.serve import build_server, home_runs, make_site
from sentinel.config.settings import load_settings
settings = load_settings({})
runs = home_runs()
build_server(settings, 0, runs, make_site(runs, allow_actions=True))
DeadRunCloser(settings)
print(*sys.modules, file=sys.stderr)
"""

MODULES_OF_RUN = 110
"""Imported by a `sentinel run`, 25 of them by every Python; with typer it is more than 200."""

SERVER = {"asyncio", "prometheus_client", "starlette", "uvicorn"}
NUMERIC = {"numpy", "ruptures", "scipy", "torch"}
TERMINAL = {"rich", "typer"}
ENGINE = {"sentinel.config.settings", "sentinel.pipeline.engine", "sentinel.store.database"}


def imported(tmp_path, code, *arguments):
    """The names of the modules that a process with that code has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    names = done.stderr.splitlines()[-1].split()
    assert "sentinel" in names, done.stderr
    return set(names)


@pytest.fixture
def log(tmp_path):
    """A log of a healthy run, of 20 lines."""
    rows = [{"step": step, "loss": 2.0 - 0.01 * step} for step in range(20)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--version"], {*SERVER, *NUMERIC, *ENGINE, "pydantic", "rich", "requests"}),
        (["run", "--", "true"], {*SERVER, *NUMERIC, *TERMINAL, *ENGINE, "dataclasses", "psutil"}),
        (
            ["status"],
            {*SERVER, *NUMERIC, *ENGINE, "requests", "rich", "sentinel.store.history"},
        ),
        (
            ["replay", "log.jsonl"],
            {*SERVER, *NUMERIC, "requests", "rich", "sentinel.store.history"},
        ),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_command_imports_only_what_it_needs(tmp_path, log, arguments, unused):
    assert imported(tmp_path, COMMAND, *arguments) & unused == set()


def test_a_command_that_does_not_train_imports_few_modules(tmp_path):
    assert len(imported(tmp_path, COMMAND, "run", "--", "true")) < MODULES_OF_RUN


def test_the_guard_of_a_command_imports_what_the_interpreter_has_imported(tmp_path):
    code = (
        "import sys; from sentinel.agent import command_guard; print(*sys.modules, file=sys.stderr)"
    )

    names = imported(tmp_path, code)
    assert names & {"dataclasses", "pathlib", "psutil", "signal", "subprocess", "typing"} == set()


def test_an_agent_imports_the_transports_at_its_start_only_if_it_has_a_sink(tmp_path):
    """Later, the installation may be another one."""
    transports = {"requests", "sentinel.notify.transports.http", "smtplib"}
    without, with_sink = (imported(tmp_path, DISPATCHER, *sinks) for sinks in ([], ["webhook"]))

    assert without & {*transports, *NUMERIC, *TERMINAL} == set()
    assert with_sink & transports == transports


def test_an_agent_imports_no_server_until_a_connection_and_no_sink_but_its_own(tmp_path):
    without, with_sink = (imported(tmp_path, DISPATCHER, *sinks) for sinks in ([], ["webhook"]))

    unused = {
        *SERVER,
        *("sentinel.cluster.head", "sentinel.cluster.follower", "sentinel.readers.rows"),
    }
    assert (without | with_sink) & unused == set()
    sinks = {name for name in with_sink - without if name.startswith("sentinel.sinks.")}
    assert {name for name in sinks if "._" not in name} == {"sentinel.sinks.webhook"}


def test_a_follower_has_imported_what_it_needs_when_it_takes_over(tmp_path):
    """It may take over when another version is installed."""
    parts = {"sentinel.cluster.failover", "sentinel.cluster.head", "sentinel.cluster.server"}

    assert imported(tmp_path, FOLLOWER) & parts == parts


def test_the_server_of_a_home_imports_neither_an_agent_nor_the_readers_of_logs(tmp_path):
    unused = {"requests", "mcp", "sentinel.agent.processor", "sentinel.cluster.head"}
    names = imported(tmp_path, SERVE)
    assert names & {*NUMERIC, *unused, "sentinel.readers.format_detection"} == set()
