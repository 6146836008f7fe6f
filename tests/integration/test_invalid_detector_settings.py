"""An invalid detector table is reported, and the run is monitored with that detector's defaults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import closing
from urllib.request import urlopen

import pytest
from support import webhook_receiver
from support.rank_processes import ranks, release, until
from support.webhook_receiver import Receiver

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import build_sinks, load_agent_settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.database import connect
from sentinel.store.silences import Silence, add_silence, expire_silences
from sentinel.transport.paths import current_run_dir

INVALID_TABLES = """
[detectors.kl_blowp]
ratio = 4
[detectors.nan_or_inf]
nonsense = 1
[detectors.loss_spike]
"""


def sentinel(*arguments):
    command = [sys.executable, "-m", "sentinel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def receiver():
    with Receiver(webhook_receiver.ok()) as receiver:
        yield receiver


@pytest.fixture
def write_settings(tmp_path, receiver):
    """Writes a sentinel.toml with a webhook and these tables."""

    def write(tables):
        sink = f'linger_seconds = 0\n[sinks.webhook]\nurl = "{receiver.url}"\n'
        (tmp_path / "sentinel.toml").write_text(sink + tables)

    return write


def received(receiver):
    """Detector and status of the notifications received, in order."""
    bodies = [request.json for request in receiver.accepted]
    return [(body["commonLabels"]["detector"], body["status"]) for body in bodies]


def serve_sick_run(check):
    """An agent serves one rank whose loss becomes NaN; `check` is called before the rank ends."""
    with ranks() as begin:
        rank = begin(
            world=1,
            steps=20,
            values={"loss": [1.0] * 10 + [float("nan")] * 10},
            hold=True,
            ending="finished",
            wait=False,
        )
        command = [sys.executable, "-m", "sentinel", "agent", "--run", "live"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
            try:
                check()
                release(rank)
                agent.wait(240)
            finally:
                agent.kill()


def read_metrics():
    agent = json.loads((current_run_dir("live") / "agent.json").read_text())
    with urlopen(f"{agent['url']}/metrics", timeout=10.0) as response:
        return response.read().decode()


@pytest.mark.fault("A16")
def test_the_run_is_monitored_and_the_error_is_reported_once(write_settings, receiver):
    write_settings(f"linger_seconds = 9{INVALID_TABLES}")
    metrics = []

    def wait_for_incident():
        until(lambda: ("nan_or_inf", "firing") in received(receiver), 240.0, "the NaN is reported")
        metrics.append(read_metrics())

    serve_sick_run(check=wait_for_incident)
    errors = re.findall(r'sentinel_config_errors_total\{.*setting="([^"]+)".*\} 1', metrics[0])

    assert sorted(errors) == [
        "detectors.kl_blowp", "detectors.nan_or_inf", "sinks.webhook.linger_seconds",
    ]  # fmt: skip
    assert received(receiver).count(("invalid_settings", "firing")) == 1
    assert received(receiver).count(("invalid_settings", "resolved")) == 1
    (body,) = [
        request.json
        for request in receiver.accepted
        if "invalid_settings" in str(request.json["commonLabels"])
        and request.json["status"] == "firing"
    ]
    assert body["commonLabels"]["severity"] == "warning"
    assert "detectors.kl_blowp" in body["commonAnnotations"]["summary"]


TRAINING = """
import os, time
import sentinel

step = 0
with sentinel.monitor(run="live"):
    while not os.path.exists("end") and step < 4000:
        step += 1
        sentinel.log({"loss": 1.0}, step=step)
        time.sleep(0.05)
"""


@pytest.mark.fault("A16")
def test_the_training_and_status_name_the_settings_once_and_no_value(
    write_settings, receiver, tmp_path
):
    write_settings(f'token_fil = "s3cret"\n{INVALID_TABLES}')
    command = [sys.executable, "-c", TRAINING]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            line = training.stderr.readline()
            # A slow agent has not stored them yet.
            until(lambda: "Invalid settings" in sentinel("status").stdout, 240.0, "the settings")
            status = sentinel("status").stdout
        finally:
            (tmp_path / "end").touch()
        rest = training.stderr.read()
    until(lambda: ("invalid_settings", "firing") in received(receiver), 240.0, "the warning")

    names = "detectors.kl_blowp, detectors.nan_or_inf, sinks.webhook.token_fil"
    text = f"Invalid settings are ignored: {names}. `sentinel doctor` shows each error."
    assert (line, rest) == (f"sentinel: {text}\n", "")
    assert text in status
    assert "s3cret" not in str([request.json for request in receiver.accepted])


def test_doctor_reports_each_invalid_table_with_the_nearest_valid_name(write_settings):
    write_settings(INVALID_TABLES)
    output = sentinel("doctor", "--quick", "--json").stdout

    assert 'Did you mean \\"kl_blowup\\"?' in output
    assert "nonsense" in output


@pytest.fixture
def processor(tmp_path, write_settings):
    """A processor with the invalid tables and a silence of every detector."""
    write_settings(INVALID_TABLES)
    path, settings = tmp_path / "sentinel.db", load_agent_settings()
    with closing(connect(path)) as connection:
        add_silence(connection, Silence("", time.time(), time.time() + 3600))
        processor = RunProcessor(
            *("live", path, connection, settings, Counters()),
            sinks=build_sinks(settings),
            read_node=NodeMeasurements,
            live_rings=list,
        )
        processor.poll_silences()
        yield processor


def queued_names(processor):
    query = "select json_extract(notification, '$.incident_name') from outbox"
    return [name for (name,) in processor.connection.execute(query)]


def test_the_error_is_reported_when_a_silence_ends(processor, tmp_path):
    processor.process(Record("live", WHOLE_RUN, 1, 1.0, Event.START))
    processor.poll_silences()
    assert queued_names(processor) == []

    with closing(connect(tmp_path / "sentinel.db")) as connection:
        expire_silences(connection, "", time.time())
    processor.poll_silences()
    processor.poll_silences()
    assert queued_names(processor) == ["live/invalid_settings#1"]


def test_the_error_is_reported_although_the_run_is_over_at_once(processor, tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        expire_silences(connection, "", time.time())
    processor.poll_silences()
    for step, event in enumerate((Event.START, Event.STEP, Event.STOP)):
        attributes = {"outcome": "finished"} if event is Event.STOP else {}
        record = Record("live", WHOLE_RUN, step, time.time(), event, {"loss": 1.0}, attributes)
        processor.process(record)
    query = "select reason, state from outbox"

    assert [*processor.connection.execute(query)] == [("opened", "queued"), ("resolved", "queued")]


@pytest.mark.fault("A16")
@pytest.mark.parametrize(
    "arguments", [["replay", "log.jsonl"], ["watch", "log.jsonl"], ["notify", "test"]]
)
def test_commands_of_users_refuse_invalid_tables(write_settings, tmp_path, arguments):
    write_settings(INVALID_TABLES)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    result = sentinel(*arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert 'Did you mean "kl_blowup"?' in result.stderr
