"""`sentinel chaos`: the fault is real, every message is marked, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import psutil
import pytest
from support.webhook_receiver import Receiver, status

from sentinel.demo.drill_faults import FAULTS

TIMEOUT_SECONDS = 240.0
JOB_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SENTINEL_RUN_ID")


@pytest.fixture
def receivers():
    """Yields a function that opens a receiver."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Receiver(**options))


@pytest.fixture
def environ(tmp_path):
    """The environment of a user outside of any job, without sinks."""
    kept = {name: text for name, text in os.environ.items() if name not in JOB_VARIABLES}
    (tmp_path / "tmp").mkdir()
    return kept | {
        "TMPDIR": str(tmp_path / "tmp"),
        "SENTINEL_HOME": str(tmp_path / "home"),
        "SENTINEL_NODE_POLL_SECONDS": "0",
    }


def command(*words):
    return [sys.executable, "-m", "sentinel", "chaos", *words]


def run_chaos(environ, cwd, *words):
    """Exit status, JSON lines and standard error of the command."""
    done = subprocess.run(
        command(*words), env=environ, cwd=cwd, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, lines, done.stderr


def processes_of(folder):
    """The processes whose command line or state directory is below `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("SENTINEL_HOME", "")]
        except psutil.Error:
            continue
        if any(str(folder) in word for word in words) and process.pid != os.getpid():
            found.append(process)
    return found


def assert_nothing_left(tmp_path):
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path / "tmp") == []
    assert not (tmp_path / "home" / "runs").exists()


def notifications(receiver, run):
    """Status and headline of what the receiver accepted about the incident of the drill."""
    bodies = [request.json for request in receiver.accepted]
    assert {body["commonLabels"]["run"] for body in bodies} == {run}
    assert all(body["commonAnnotations"]["summary"].startswith("DRILL: ") for body in bodies)
    assert all(body["sentinel"]["headline"].startswith("DRILL, ") for body in bodies)
    return [body["status"] for body in bodies]


def test_a_drill_notifies_every_sink_and_touches_no_real_run(environ, receivers, tmp_path):
    webhook, slack, ping = receivers(), receivers(), receivers()
    (tmp_path / "sentinel.toml").write_text(
        f'ping_url = "{ping.url}"\nsamples_dir = "{tmp_path / "samples"}"\n'
        f'[sinks.webhook]\nurl = "{webhook.url}"\n[sinks.slack]\nurl = "{slack.url}"\n'
    )

    code, lines, error = run_chaos(environ, tmp_path, "--fault", "nan", "--json")

    assert (code, error) == (0, "")
    run = lines[0]["run"]
    assert run.startswith("chaos-nan-")
    assert [line["type"] for line in lines] == [
        "start", "started", "injected", "detected", *["delivery"] * 2, "recovered",
        *["delivery"] * 2, "summary",
    ]  # fmt: skip
    assert lines[-1]["passed"]
    assert notifications(webhook, run) == ["firing", "resolved"]
    texts = [request.body.decode() for request in slack.accepted]
    assert [text.count("This is a drill") for text in texts] == [1, 1]
    assert ping.requests == []
    assert_nothing_left(tmp_path)


@pytest.mark.full
@pytest.mark.fault("A10")
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "nan"])
def test_each_fault_is_found_and_notified(environ, receivers, tmp_path, name):
    webhook = receivers()
    environ["SENTINEL_SINKS__WEBHOOK__URL"] = webhook.url
    if name == "hang":
        environ["SENTINEL_DETECTORS__RUN_STALLED__FLOOR"] = "2"

    code, lines, error = run_chaos(environ, tmp_path, "--fault", name, "--json", "--timeout", "120")

    assert (code, error) == (0, "")
    (detected,) = [line for line in lines if line["type"] == "detected"]
    assert detected["detector"] == FAULTS[name].detector
    assert notifications(webhook, lines[0]["run"]) == ["firing", "resolved"]
    if name == "hang":
        assert "rank 1 is in load_batch" in detected["summary"]
    assert_nothing_left(tmp_path)


@pytest.mark.full
@pytest.mark.fault("D5")
def test_a_sink_that_rejects_or_is_not_meant_is_named_with_the_reason(environ, receivers, tmp_path):
    good, revoked, unused = receivers(), receivers(default=status(404)), receivers()
    (tmp_path / "sentinel.toml").write_text(
        f'[sinks.good]\nkind = "webhook"\nurl = "{good.url}"\n'
        f'[sinks.revoked]\nkind = "webhook"\nurl = "{revoked.url}"\n'
        f'[sinks.production]\nkind = "webhook"\nurl = "{unused.url}"\nruns = ["prod-*"]\n'
        f'[sinks.team]\nkind = "webhook"\nurl = "{unused.url}"\nteams = ["vision"]\n'
    )

    code, lines, _ = run_chaos(environ, tmp_path, "--fault", "rank_killed", "--json")

    opened = {
        line["sink"]: (line["state"], line["detail"])
        for line in lines
        if line["type"] == "delivery" and line["notification"] == "opened"
    }
    assert code == 1
    assert opened["good"][0] == "delivered"
    assert opened["revoked"] == ("dead", "HTTP 404")
    assert opened["production"][0] == opened["team"][0] == "held_back"
    assert "chaos-*" in opened["production"][1]
    assert "teams" in opened["team"][1]
    assert not lines[-1]["passed"]


@pytest.mark.full
def test_an_ended_drill_leaves_no_process(environ, receivers, tmp_path):
    environ["SENTINEL_SINKS__WEBHOOK__URL"] = receivers().url
    drill = subprocess.Popen(
        command("--fault", "hang"), env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with drill:
        assert drill.stdout is not None
        while "fault: " not in drill.stdout.readline():
            assert drill.poll() is None
        drill.send_signal(signal.SIGTERM)
        assert drill.wait(TIMEOUT_SECONDS) == 128 + signal.SIGTERM
    assert_nothing_left(tmp_path)
