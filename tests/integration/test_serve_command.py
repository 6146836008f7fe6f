"""`sentinel serve` and `sentinel open` with a real agent: live, killed, started again, and past."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
import requests
from support.event_streams import event_stream, next_event
from support.rank_processes import ranks, until

TIMEOUT_SECONDS = 240.0
TOKEN = "s3cret"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Servers:
    """A live run with its agent, and a server of its home directory."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.agent = folder, stack, None
        # Each test has another home.
        self.environ = {**os.environ}
        self.start_rank = stack.enter_context(ranks())
        self.rank = self.start_rank(0, world=1, steps=100_000, every=0.05, wait=False)
        self.start_agent()
        self.serve, self.lines = self.start_serve()
        self.url = re.search(r"http://\S+?(?=/$|/\n)", self.lines[0])[0]

    def start_agent(self):
        command = [sys.executable, "-m", "sentinel", "agent", "--run", "live"]
        log = self.stack.enter_context((self.folder / "log").open("ab"))
        self.agent = subprocess.Popen(command, stderr=log, env=self.environ)
        self.stack.callback(stop, self.agent)
        registration = self.folder / "home/runs/live/agent.json"
        until(
            lambda: registration.exists() and self.read_pid(registration) == self.agent.pid,
            TIMEOUT_SECONDS,
            "the agent is registered",
        )

    @staticmethod
    def read_pid(registration):
        return json.loads(registration.read_text())["pid"]

    def start_serve(self):
        command = [sys.executable, "-m", "sentinel", "serve", "--port", "0"]
        environ = self.environ | {"SSH_CONNECTION": "192.0.2.9 51000 192.0.2.1 2222", "USER": "ana"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        self.stack.callback(process.stdout.close)
        self.stack.callback(stop, process)
        return process, [process.stdout.readline() for _ in range(2)]

    def get(self, path):
        headers = BEARER | {"connection": "close"}
        return requests.get(f"{self.url}/{path}", headers=headers, timeout=TIMEOUT_SECONDS)

    def run(self):
        return self.get("runs/live/api/run").json()

    def listed(self):
        return {run["run"]: run for run in self.get("api/runs").json()["runs"]}

    def sentinel(self, *arguments):
        """Exit status and output of a command."""
        command = [sys.executable, "-m", "sentinel", *arguments]
        options = {"capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS}
        done = subprocess.run(command, env=self.environ, check=False, **options)
        return done.returncode, done.stdout, done.stderr


def stop(process):
    if process.poll() is None:
        process.kill()
    process.wait(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SENTINEL_HOME", str(folder / "home"))
        patch.setenv("SENTINEL_RUNTIME_DIR", str(folder / "shared"))
        patch.setenv("SENTINEL_PORT", "0")
        patch.setenv("SENTINEL_TOKEN", TOKEN)
        patch.setenv("SENTINEL_PROJECT", "math")
        patch.setenv("SENTINEL_TAGS", "ablation, seed 1")
        patch.delenv("SSH_CONNECTION", raising=False)
        patch.delenv("DISPLAY", raising=False)
        patch.chdir(folder)
        yield Servers(folder, stack)


def test_the_link_and_the_tunnel_are_printed(servers):
    port = servers.url.rpartition(":")[2]

    assert servers.lines[0].startswith(f"Serving the runs of {servers.folder}/home at http://127")
    assert servers.lines[1] == (
        f"From your own machine: ssh -N -p 2222 -L {port}:127.0.0.1:{port} ana@192.0.2.1, "
        f"then open {servers.url}/\n"
    )


def test_a_port_in_use_is_reported(servers):
    port = int(servers.url.rpartition(":")[2])
    command = [sys.executable, "-m", "sentinel", "serve", "logs", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=servers.environ
    )
    try:
        used = int(re.search(r":(\d+)/\n", process.stdout.readline())[1])
    finally:
        stop(process)
    _, problem = process.communicate(timeout=TIMEOUT_SECONDS)

    assert used != port
    assert problem == f"Port {port} is in use: this server has port {used}.\n"


def test_every_page_requires_the_token_of_the_settings(servers):
    for path in ("", "api/runs", "runs/live/", "runs/live/api/events", "static/run.js"):
        answer = requests.get(f"{servers.url}/{path}", timeout=TIMEOUT_SECONDS)
        assert answer.status_code == 401, path


def test_a_live_run_is_listed_and_followed(servers):
    until(
        lambda: servers.listed().get("live", {}).get("state") == "running",
        TIMEOUT_SECONDS,
        "the run is listed as running",
    )
    run = servers.listed()["live"]
    assert (run["is_live"], run["project"], run["tags"]) == (True, "math", ["ablation", "seed 1"])
    # While the agent does not answer in time, the state is that of the database.
    until(lambda: servers.run()["is_live"], TIMEOUT_SECONDS, "the state is that of the agent")

    with event_stream(f"{servers.url}/runs/live/api/events", **BEARER) as events:
        assert next_event(events, "run").data["run"] == "live"
        assert next_event(events, "rows").data["values"]["loss"]
    for page in ("", "runs/live/", "compare"):
        assert "<main" in servers.get(page).text


def test_the_link_of_a_live_run_is_that_of_its_agent(servers):
    port = json.loads((servers.folder / "home/runs/live/agent.json").read_text())["port"]

    assert servers.sentinel("open", "live") == (0, f"http://127.0.0.1:{port}/runs/live/\n", "")
    assert servers.sentinel("open") == (0, f"{servers.url}/\n", "")


def test_the_page_outlives_the_agent_and_follows_the_next_one(servers):
    url = f"{servers.url}/runs/live/api/events"
    with event_stream(url, **BEARER) as events:
        known = next_event(events, "rows")
    stop(servers.agent)
    until(
        lambda: servers.run()["is_live"] is False,
        TIMEOUT_SECONDS,
        "the state is that of the database",
    )
    state = servers.run()
    assert (state["state"], state["project"], state["step"] >= known.data["step"][-1]) == (
        "unfinished",
        "math",
        True,
    )
    until(
        lambda: servers.listed()["live"]["state"] == "unfinished", TIMEOUT_SECONDS, "so is the list"
    )
    assert servers.sentinel("open", "live") == (0, f"{servers.url}/runs/live/\n", "")

    servers.start_agent()
    until(lambda: servers.run()["is_live"], TIMEOUT_SECONDS, "the next agent is asked")
    with event_stream(url, **BEARER | {"last-event-id": known.number}) as events:
        returned = next_event(events, "rows")
    assert returned.data["step"][0] == known.data["step"][-1] + 1


def test_a_run_that_ended_stays(servers):
    stop(servers.rank)
    os.kill(servers.agent.pid, signal.SIGTERM)
    servers.agent.wait(TIMEOUT_SECONDS)
    until(lambda: servers.listed()["live"]["state"] == "died", TIMEOUT_SECONDS, "it is listed")
    until(lambda: servers.run()["state"] == "died", TIMEOUT_SECONDS, "so it is on the page")

    assert not servers.listed()["live"]["is_live"]
    assert not servers.run()["is_live"]
    assert servers.get("runs/live/api/signals").json()
    with event_stream(f"{servers.url}/runs/live/api/events", **BEARER) as events:
        assert [event.name for event in events][-1] == "end"


def test_a_signal_ends_the_server_and_its_link(servers):
    servers.serve.terminate()

    assert servers.serve.wait(TIMEOUT_SECONDS) == 0
    status, _, error = servers.sentinel("open", "live")
    assert (status, error) == (
        1,
        "Nothing serves run live: start `sentinel serve`, and try again.\n",
    )
