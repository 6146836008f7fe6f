"""One secret in every setting that may hold one, over a whole run: no output contains it.

All processes log at the level DEBUG, and print what the HTTP library of Python sends and receives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import psutil
import pytest
import requests
from support.rank_processes import until
from support.webhook_receiver import Receiver, hang_up, redirect, status

TIMEOUT_SECONDS = 240.0
CANARY = "CANARY7f3a9c51e0b24d68"
ENCODED = b64encode(CANARY.encode()).decode().rstrip("=")

VERBOSE = """
import logging
logging.basicConfig(level=logging.DEBUG)
"""
"""The root logger of every process, before the agent sets its own level."""

TRAINING = f"""
import sys, time, sentinel
@sentinel.monitor(metadata={{"note": "a run with a secret"}})
def train():
    for step in range(1, 100000):
        sentinel.log({{"loss": 1.0 if step < 100 else float("nan")}}, step=step)
        time.sleep(0.01)
        if step > 110 and sys.stdin in __import__("select").select([sys.stdin], [], [], 0)[0]:
            raise RuntimeError("POST https://user:{CANARY}@host/services/T/B/{CANARY} failed")
try:
    train()
except RuntimeError:
    sys.exit(1)
"""

ROUTES = (
    "/",
    "/metrics",
    "/api/run",
    "/api/incidents",
    "/api/samples",
    "/runbooks/",
    "/runbooks/nan_or_inf",
    "/static/run.js",
    "/-/healthy",
    "/-/ready",
    "/nothing",
    f"/runbooks/{CANARY[:6]}",
)


def settings(url, folder):
    """A settings file with the canary in URLs, headers and secrets, and in files of secrets."""
    secret = folder / "secret"
    secret.write_text(CANARY)
    return f"""
token = "{CANARY}"
linger_seconds = 60.0
node_poll_seconds = 0.0
ping_url = "{url}/{CANARY}"
[cluster]
token_file = "{secret}"
[sinks.webhook]
url = "{url}/{CANARY}?token={CANARY}"
secret_file = "{secret}"
authorization = "Bearer {CANARY}"
[sinks.slack]
url = "{url}/services/{CANARY}"
[sinks.slack_bot]
token = "xoxb-{CANARY}"
channel = "training"
api_url = "{url}"
[sinks.pagerduty]
routing_key = "{CANARY.ljust(32, "0")}"
url = "{url}"
[sinks.discord]
url = "{url}/{CANARY}"
[sinks.alertmanager]
url = "{url}"
authorization = "Bearer {CANARY}"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that fails, whose receivers answer in many ways; yields what it has printed so far."""
    folder = tmp_path / "work"
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(VERBOSE)
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    script = [status(500), hang_up(), redirect(f"http://127.0.0.1:9/{CANARY}"), status(404)] * 5
    with Receiver(script=script) as receiver:
        (folder / "sentinel.toml").write_text(settings(receiver.url, tmp_path))
        environ = {
            "SENTINEL_HOME": str(tmp_path / "home"),
            "SENTINEL_RUNTIME_DIR": str(tmp_path / "rings"),
            "SENTINEL_SINKS__NIGHT__KIND": "slack",
            "SENTINEL_SINKS__NIGHT__URL": f"{receiver.url}/{CANARY}",
            "SENTINEL_PORT": "0",
            "SENTINEL_RUN_ID": "canary",
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "path"), os.environ["PYTHONPATH"]]),
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        with (tmp_path / "output").open("wb") as output:
            training = subprocess.Popen(
                [sys.executable, "-X", "dev", "train.py"],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield Run(tmp_path, training, receiver)
        finally:
            training.kill()
            training.communicate()
            agent = Run(tmp_path, training, receiver).agent()
            if agent is not None:
                agent.kill()


class Run:
    """The training, its agent and its files."""

    def __init__(self, folder, training, receiver):
        self.folder, self.training, self.receiver = folder, training, receiver

    def registration(self):
        path = self.folder / "home" / "runs" / "canary" / "agent.json"
        return json.loads(path.read_text()) if path.exists() else None

    def agent(self):
        registration = self.registration()
        try:
            return registration and psutil.Process(registration["pid"])
        except psutil.NoSuchProcess:
            return None

    def files(self):
        """The content of every file of the run and of its output, by path."""
        roots = (self.folder / "home", self.folder / "rings")
        paths = [path for root in roots for path in root.rglob("*") if path.is_file()]
        paths.append(self.folder / "output")
        return {str(path): path.read_bytes().decode("latin-1") for path in paths}

    def answers(self):
        """Headers and bodies of every route, with the token and without."""
        url, found = self.registration()["url"], {}
        for route in ROUTES:
            for name, headers in {
                "with": {"authorization": f"Bearer {CANARY}"},
                "without": {},
                "wrong": {"authorization": "Bearer wrong"},
            }.items():
                answer = requests.get(f"{url}{route}", headers=headers, timeout=240)
                found[f"{route} {name}"] = f"{answer.headers} {answer.text}"
        return found

    def command_lines(self):
        return {
            str(each.pid): " ".join(each.cmdline())
            for each in (psutil.Process(self.training.pid), self.agent())
        }


def sentinel(*words, **variables):
    """Output of a command of the user."""
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", *words], env=os.environ | variables,
        capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    return done.stdout + done.stderr


def leaks(texts):
    return [name for name, text in texts.items() if CANARY in text or ENCODED in text]


@pytest.mark.full
@pytest.mark.fault("X1")
def test_no_output_of_a_run_contains_a_secret(run):
    until(lambda: len(run.receiver.requests) > 12, TIMEOUT_SECONDS, "requests to the receivers")
    sent = [request.path + str(request.headers) for request in run.receiver.requests]
    assert any(CANARY in text for text in sent), "the canary is in the settings"
    shown = run.answers() | run.command_lines()
    shown |= {
        "status": sentinel("status", "--json"),
        "doctor": sentinel("doctor", "--quick", "--json"),
        "notify test": sentinel("notify", "test", "--json"),
        "wrong setting": sentinel("agent", "--run", "x", SENTINEL_SINKS__SLACK__URLS=CANARY),
        "wrong value": sentinel("agent", "--run", "x", SENTINEL_LINGER_SECONDS=CANARY),
        "wrong url": sentinel("agent", "--run", "x", SENTINEL_PING_URL=f"ftp://{CANARY}"),
        "wrong file": sentinel("agent", "--run", "x", SENTINEL_TOKEN_FILE=f"/{CANARY}"),
        "replay": sentinel("replay", str(Path("train.py")), "--json"),
    }
    assert run.training.stdin is not None
    run.training.stdin.write(b"fail\n")
    run.training.stdin.flush()
    until(lambda: run.training.poll() is not None, TIMEOUT_SECONDS, "the training fails")
    until(
        lambda: "run_failed" in requests.get(
            f"{run.registration()['url']}/api/run",
            headers={"authorization": f"Bearer {CANARY}"}, timeout=240,
        ).text, TIMEOUT_SECONDS, "the failure is found",
    )  # fmt: skip
    shown |= run.answers() | run.files()

    assert "DEBUG" in shown[str(run.folder / "home" / "runs" / "canary" / "agent.log")]
    assert leaks(shown) == []
