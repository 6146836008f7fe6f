"""What the sinks of trackers pass to the process that records."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from unittest import mock

import pytest
from pydantic import ValidationError
from support.notifications import NOW, make_notification

from sentinel.model.counters import Counters
from sentinel.model.delivery import Rejection, Response
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.notify import outbox
from sentinel.notify.sink_worker import SinkWorker
from sentinel.notify.trackers import wandb
from sentinel.notify.trackers.outcome import NotRecordedError
from sentinel.sinks.mlflow import Mlflow
from sentinel.sinks.tensorboard import Tensorboard
from sentinel.sinks.trackio import Trackio
from sentinel.sinks.wandb import Wandb
from sentinel.store.database import connect


def call(sink, notification):
    return json.loads(sink.render(notification, "ab" * 16, None).stdin)


def test_the_runs_at_trackers_and_the_settings_are_passed_on():
    runs = {"mlflow_run": "r"}
    notification = replace(make_notification(), context=RunContext(trackers=runs))
    passed = call(Mlflow("https://mlflow.example", token="t"), notification)

    assert (passed["runs"], passed["token"], passed["tracker"]) == (runs, "t", "mlflow")
    assert (passed["severity"], passed["status"], passed["step"]) == ("critical", "firing", 120)


def test_a_case_that_lasts_until_the_end_of_the_run_is_no_success():
    resolved = make_notification(NotificationReason.RESOLVED)
    ended = replace(
        resolved, incident=replace(resolved.incident, resolution=Resolution.RUN_FINISHED)
    )

    assert not call(Tensorboard(), resolved)["lasts"]
    assert call(Tensorboard(), ended)["lasts"]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("no_run", "Nothing was logged to MLflow in this run yet"),
        ("not_installed", "pip install mlflow"),
        ("{tracker.__class__}", ""),
    ],
)
def test_the_reason_of_the_worker_is_explained(reason, remedy):
    response = Response(65, json.dumps({"reason": reason}), protocol="exit status")

    assert remedy in Mlflow().explain(response)
    assert Mlflow().rejection(response) is Rejection.PERMANENT
    assert Mlflow().rejection(Response(75, protocol="exit status")) is Rejection.TEMPORARY


@pytest.mark.parametrize(
    ("sink", "settings"),
    [
        (Wandb, {"run": "project/id"}),
        (Wandb, {"base_url": "http://wandb.example"}),
        (Tensorboard, {"directory": "relative"}),
        (Mlflow, {"tracking_uri": "http://mlflow.example:5000"}),
        (Mlflow, {"token": "secret"}),
        (Trackio, {"write_token": "secret"}),
    ],
)
def test_a_setting_that_cannot_work_is_refused(sink, settings):
    with pytest.raises(ValidationError):
        sink(**settings)


def test_a_record_that_failed_is_stored_with_its_reason(tmp_path):
    """What people read in `sentinel status` and on the page."""
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        worker = SinkWorker("mlflow", Mlflow(), connection, Counters(), lambda: NOW)
        outbox.enqueue(connection, make_notification(), ["mlflow"], NOW)
        worker.deliver_next()
        (row,) = connection.execute("select state, last_error from outbox")

    assert row[0] == "dead"
    assert row[1].startswith("Nothing was logged to MLflow in this run yet")


def test_a_secret_is_not_sent_where_the_training_says(monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.setenv("NETRC", "/dev/null")
    runs = {"wandb_run": "a/b/c", "wandb_url": "https://evil.example"}
    asked = []
    with mock.patch.object(wandb, "request_json", lambda url, *_, **__: asked.append(url) or {}):
        for key in ("", "secret"):
            passed = {"runs": runs, "run": "", "base_url": "", "api_key": key, "allow_http": False}
            with pytest.raises(NotRecordedError):
                wandb.record(passed)

    assert asked == ["https://api.wandb.ai/graphql"] * len(asked)
