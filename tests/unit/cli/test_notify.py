"""`sentinel notify test`: tells per sink whether a page would arrive."""

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


def test_sends_a_page_that_opens_and_one_that_resolves(run):
    with Receiver() as there:
        result = run(SENTINEL_SINKS__SLACK__URL=there.url)

    assert result.exit_code == 0
    assert result.output == (
        "slack took the opened page: HTTP 200\nslack took the resolved page: HTTP 200\n"
    )
    assert ["TEST: " in request.json["text"] for request in there.requests] == [True, True]
    assert "RESOLVED" in there.requests[1].json["text"]


def test_each_sink_is_tried_though_another_fails(run):
    with Receiver(webhook_receiver.status(404)) as slack, Receiver() as webhook:
        result = run(
            "--json",
            SENTINEL_SINKS__SLACK__URL=slack.url,
            SENTINEL_SINKS__WEBHOOK__URL=webhook.url,
            SENTINEL_SINKS__WEBHOOK__SECRET="pass phrase",
        )

    assert result.exit_code == 1
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(t["sink"], t["page"], t["delivered"], t["answer"]) for t in told] == [
        ("slack", "opened", False, "HTTP 404"),
        ("webhook", "opened", True, "HTTP 200"),
        ("webhook", "resolved", True, "HTTP 200"),
    ]
    assert all("webhook-signature" in request.headers for request in webhook.requests)


def test_one_sink_can_be_chosen(run):
    with Receiver() as slack, Receiver() as webhook:
        result = run(
            "--sink",
            "webhook",
            SENTINEL_SINKS__SLACK__URL=slack.url,
            SENTINEL_SINKS__WEBHOOK__URL=webhook.url,
        )

    assert (result.exit_code, len(slack.requests), len(webhook.requests)) == (0, 0, 2)


@pytest.mark.parametrize(
    ("arguments", "environ", "told"),
    [
        ([], {}, "No sink is set up"),
        (["--sink", "slak"], {"SENTINEL_SINKS__SLACK__URL": "http://127.0.0.1:9/CANARY"}, "slack"),
        ([], {"SENTINEL_SINKS__SLACK__URL": "CANARY"}, "sinks.slack.url"),
        (["--config", "no.toml"], {}, "no.toml"),
    ],
)
def test_wrong_settings_are_told_in_one_line(run, arguments, environ, told):
    result = run(*arguments, **environ)

    assert result.exit_code == 2
    assert told in result.output
    assert result.output.count("\n") == 1
    assert "CANARY" not in result.output


def test_a_file_of_settings_can_be_named(run, tmp_path):
    with Receiver() as there:
        (tmp_path / "mine.toml").write_text(f'[sinks.webhook]\nurl = "{there.url}"\n')
        result = run("--config", "mine.toml")

    assert (result.exit_code, len(there.requests)) == (0, 2)
