"""An agent under scrapes, idle connections and a long catch-up: it answers, and completely."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from math import inf, isnan, nan
from pathlib import Path

import pytest
import requests
from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.rank_processes import ranks, until

TIMEOUT_SECONDS = 240.0
STEPS = 6_000
VALUES = {
    "loss": [1.0],
    "up": [inf],
    "down": [-inf],
    "none": [nan],
    'a"} 1\nforged 2\r\n# HELP forged x': [3.0],
    "\x1b[2J\u202e</script>\u2028": [4.0],
    "long" * 30: [5.0],
}
HALF_REQUEST = b"GET /metrics HTTP/1.1\r\nhost: local"


class RunningAgent:
    """An agent of a rank that has written `STEPS` steps before."""

    def __init__(self, folder, stack):
        start_rank = stack.enter_context(ranks())
        start_rank(0, world=1, steps=STEPS, values=VALUES)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--run", "live"],
            stderr=stack.enter_context((folder / "log").open("wb")),
        )
        stack.callback(self.process.wait, TIMEOUT_SECONDS)
        stack.callback(self.process.kill)
        registration = folder / "home/runs/live/agent.json"
        until(registration.exists, TIMEOUT_SECONDS, "the agent is registered")
        self.port = json.loads(registration.read_text())["port"]

    def get(self, path, session=requests):
        url = f"http://127.0.0.1:{self.port}{path}"
        return session.get(url, headers={"connection": "close"}, timeout=TIMEOUT_SECONDS)

    def step(self):
        return self.get("/api/run").json()["step"] or 0


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SENTINEL_HOME", str(folder / "home"))
        patch.setenv("SENTINEL_RUNTIME_DIR", str(folder / "rings"))
        patch.setenv("SENTINEL_PORT", "0")
        patch.chdir(folder)
        yield RunningAgent(folder, stack)


@pytest.mark.fault("H8")
def test_probes_are_answered_while_the_agent_catches_up(agent):
    """Before the last of the records that wait for it is processed."""
    answered = 0
    while answered < 3 and agent.step() < STEPS:
        statuses = [agent.get(path).status_code for path in ("/-/healthy", "/-/ready", "/metrics")]
        assert statuses == [200] * 3
        answered += agent.step() < STEPS

    assert answered >= 1


@pytest.mark.fault("H1")
def test_every_scrape_of_ten_clients_is_complete(agent):
    def scrape(_):
        url = f"http://127.0.0.1:{agent.port}/metrics"
        headers = {"accept": "application/openmetrics-text; version=1.0.0"}
        with requests.Session() as session:
            return [session.get(url, headers=headers, timeout=TIMEOUT_SECONDS) for _ in range(20)]

    with ThreadPoolExecutor(10) as clients:
        answers = [each for answers in clients.map(scrape, range(10)) for each in answers]

    assert {each.status_code for each in answers} == {200}
    assert all(each.text.endswith("\n# EOF\n") for each in answers)
    for each in answers[::20]:
        families = {family.name for family in text_string_to_metric_families(each.text)}
        assert {"sentinel_loss", "sentinel_run_active", "sentinel_build"} <= families


@pytest.mark.full
@pytest.mark.fault("H2")
def test_400_half_requests_again_and_again_keep_nobody_out(agent):
    threads = thread_count(agent)
    for _ in range(3):
        with ExitStack() as stack:
            for _ in range(400):
                half = stack.enter_context(socket.create_connection(("127.0.0.1", agent.port)))
                with suppress(ConnectionError):
                    half.sendall(HALF_REQUEST)
            for path in ("/-/healthy", "/metrics", "/api/run"):
                assert agent.get(path).status_code == 200
            # Those that answer requests, and none for each connection.
            assert thread_count(agent) < threads + 50


def thread_count(agent):
    return len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))


@pytest.mark.fault("H5", "H6")
def test_hostile_names_and_values_are_exported_as_they_are(agent):
    text = agent.get("/metrics").text
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    values = {
        sample.labels["key"]: sample.value for sample in families["sentinel_logged_value"].samples
    }

    assert (values["up"], values["down"], isnan(values["none"])) == (inf, -inf, True)
    assert {3.0, 4.0, 5.0} <= set(values.values())
    assert all(name.startswith(("sentinel_", "python_", "process_")) for name in families)
    assert not any(line.startswith("forged") for line in text.splitlines())
    assert "\x1b" not in text
    assert max(map(len, values)) <= 128
