"""`sentinel notify test`: whether each sink accepts a notification."""

import json

import pytest
from support import webhook_receiver
from support.webhook_receiver import Receiver
from typer.testing import CliRunner

from sentinel.cli import notify


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command in an empty directory with these settings in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notify, "MESSAGE_INTERVAL_SECONDS", 0.0)

    def run(*arguments, **environ):
        return CliRunner().invoke(notify.app, ["test", *arguments], env=environ)

    return run


def test_a_notification_and_its_resolution_are_sent(run):
    with Receiver() as receiver:
        result = run(SENTINEL_SINKS__SLACK__URL=receiver.url)

    assert result.exit_code == 0
    assert result.output == (
        "slack accepted the opened notification: HTTP 200\n"
        "slack accepted the resolved notification: HTTP 200\n"
    )
    assert ["TEST: " in json.dumps(request.json) for request in receiver.requests] == [True, True]
    assert "Resolved: " in receiver.requests[1].json["text"]


def test_each_sink_is_tested_even_if_another_fails(run):
    with Receiver(webhook_receiver.status(404)) as slack, Receiver() as webhook:
        result = run(
            "--json",
            SENTINEL_SINKS__SLACK__URL=slack.url,
            SENTINEL_SINKS__WEBHOOK__URL=webhook.url,
            SENTINEL_SINKS__WEBHOOK__SECRET="pass phrase",
        )

    assert result.exit_code == 1
    deliveries = [json.loads(line) for line in result.stdout.splitlines()]
    keys = "sink", "notification", "delivered", "response"
    assert [tuple(delivery[key] for key in keys) for delivery in deliveries] == [
        ("slack", "opened", False, "HTTP 404"),
        ("webhook", "opened", True, "HTTP 200"),
        ("webhook", "resolved", True, "HTTP 200"),
    ]
    assert all("webhook-signature" in request.headers for request in webhook.requests)


def test_one_sink_can_be_selected(run):
    with Receiver() as slack, Receiver() as webhook:
        result = run(
            "--sink",
            "webhook",
            SENTINEL_SINKS__SLACK__URL=slack.url,
            SENTINEL_SINKS__WEBHOOK__URL=webhook.url,
        )

    assert (result.exit_code, len(slack.requests), len(webhook.requests)) == (0, 0, 2)


@pytest.mark.parametrize(
    ("arguments", "environ", "text"),
    [
        ([], {}, "no sink is configured"),
        (["--sink", "slak"], {"SENTINEL_SINKS__SLACK__URL": "http://127.0.0.1:9/CANARY"}, "slack"),
        ([], {"SENTINEL_SINKS__SLACK__URL": "CANARY"}, "sinks.slack.url"),
        (["--config", "no.toml"], {}, "no.toml"),
    ],
)
def test_wrong_settings_are_reported_in_one_line(run, arguments, environ, text):
    result = run(*arguments, **environ)

    assert result.exit_code == 2
    assert text in result.output
    assert result.output.count("\n") == 1
    assert "CANARY" not in result.output


def test_a_settings_file_can_be_given(run, tmp_path):
    with Receiver() as receiver:
        (tmp_path / "mine.toml").write_text(f'[sinks.webhook]\nurl = "{receiver.url}"\n')
        result = run("--config", "mine.toml")

    assert (result.exit_code, len(receiver.requests)) == (0, 2)
