"""Tests of the context of a notification: host, command, links and checkpoint."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from threading import Event as Flag

import pytest
from support.notifications import make_notification, with_diagnosis
from support.results import make_result

from sentinel.model.message import build_message
from sentinel.model.notification import RunContext
from sentinel.model.record import Event
from sentinel.notify import run_context
from sentinel.notify.run_context import RunContextReader
from sentinel.store.database import connect
from sentinel.store.history import History


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def test_the_context_holds_metadata_and_links(connection):
    reader = RunContextReader(connection, "http://gpu-3:13130/", "https://grafana/d?var-run={run}")
    metadata = {"host": "gpu-3", "script": "/home/ana/train.py", "model": "Qwen/Qwen2.5-7B"}

    assert reader.read(make_notification(run="a/b"), metadata) == RunContext(
        host="gpu-3",
        command="train.py",
        model="Qwen/Qwen2.5-7B",
        page_url="http://gpu-3:13130/runs/a%2Fb/",
        dashboard_url="https://grafana/d?var-run=a%2Fb",
        runbook_url="http://gpu-3:13130/runbooks/kl_blowup",
    )


def test_without_a_public_address_the_message_names_the_command_for_later(connection):
    """The address of the agent ends with the run."""
    reader = RunContextReader(connection, agent_url="http://127.0.0.1:13130")
    notification = make_notification(run="grpo-7b")
    context = reader.read(notification, {"host": "gpu-3"})
    message = build_message(replace(notification, context=context), None)

    assert context.page_url == "http://127.0.0.1:13130/runs/grpo-7b/"
    (note,) = message.notes
    assert note == (
        "After the run, `sentinel report grpo-7b` on gpu-3 writes its page to a file; "
        "`sentinel serve` shows it."
    )


def test_the_runs_at_trackers_are_passed_on(connection):
    metadata = {"mlflow_run": "r", "mlflow_uri": "/mlruns", "beta": 0.1}
    context = RunContextReader(connection).read(make_notification(), metadata)

    assert context.trackers == {"mlflow_run": "r", "mlflow_uri": "/mlruns"}


def test_what_is_not_known_is_empty(connection):
    assert RunContextReader(connection).read(with_diagnosis(), {}) == RunContext()


def test_the_runbook_is_that_of_the_cause(connection):
    context = RunContextReader(connection, "http://gpu-3:13130").read(with_diagnosis(), {})

    assert context.runbook_url == "http://gpu-3:13130/runbooks/policy_collapse"


def test_the_path_of_the_saved_checkpoint_is_used_while_it_exists(connection, tmp_path):
    checkpoint = tmp_path / "checkpoint-80"
    saved = make_result(Event.SAVE, 80, attributes={"path": str(checkpoint)})
    History(connection).update(saved)
    reader = RunContextReader(connection)

    assert reader.read(with_diagnosis(), {}).checkpoint_path == ""
    checkpoint.mkdir()
    assert reader.read(with_diagnosis(), {}).checkpoint_path == str(checkpoint)


def test_the_usual_path_of_a_framework_is_derived(connection, tmp_path):
    (tmp_path / "checkpoint-80").mkdir()
    metadata = {"framework": "trl", "output_dir": str(tmp_path)}
    context = RunContextReader(connection).read(with_diagnosis(), metadata)

    assert context.checkpoint_path == str(tmp_path / "checkpoint-80")


def test_a_file_system_that_hangs_delays_a_notification_once(connection, tmp_path, monkeypatch):
    (tmp_path / "checkpoint-80").mkdir()
    metadata, hangs = {"framework": "trl", "output_dir": str(tmp_path)}, Flag()
    monkeypatch.setattr(run_context, "_exists", lambda _: hangs.wait(240))
    monkeypatch.setattr(run_context, "MAX_LOOKUP_SECONDS", 0.01)
    reader = RunContextReader(connection)

    for _ in range(3):
        assert reader.read(with_diagnosis(), metadata).checkpoint_path == ""
    hangs.set()
