"""`sentinel notify test`: whether each sink accepts a notification."""

import json

import pytest
from support import webhook_receiver
from support.vendors import SLACK_TOKEN, FakeSlack
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


def slack_bot(slack, **settings):
    settings = {"token": SLACK_TOKEN, "channel": "training", "api_url": slack.api_url} | settings
    return {f"SENTINEL_SINKS__SLACK_BOT__{name.upper()}": text for name, text in settings.items()}


def test_a_message_that_can_be_changed_is_changed_and_closed(run):
    with FakeSlack() as slack:
        result = run(**slack_bot(slack))

    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            f"slack_bot accepted the {reason} notification: HTTP 200"
            for reason in ("opened", "updated", "resolved")
        ],
    )
    (message,) = slack.posts
    assert message["text"].startswith(
        ":white_check_mark: Resolved: TEST: check of the delivery, run test-"
    )
    assert len(slack.thread(message)) == 2


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"SLACK__URL": "{url}", "respond": webhook_receiver.status(404, b"no_service")},
            (
                "slack did not accept the opened notification: HTTP 404. The webhook was revoked: "
                "create a new one in the settings of the app."
            ),
        ),
        (
            {"WEBHOOK__URL": "{url}", "respond": webhook_receiver.status(401)},
            (
                "webhook did not accept the opened notification: HTTP 401. The receiver does not "
                "accept the credentials: check them."
            ),
        ),
        (
            {"SLACK__URL": "{url}", "respond": webhook_receiver.garbage()},
            (
                "slack did not accept the opened notification: HTTP 200. Another program "
                "responded, such as a proxy that asks for a login: check URL and proxy."
            ),
        ),
        (
            {"PAGERDUTY__ROUTING_KEY": "0" * 32, "PAGERDUTY__URL": "{url}"}
            | {"respond": webhook_receiver.status(400)},
            (
                "pagerduty did not accept the opened notification: HTTP 400. Check routing_key: "
                "it is the integration key of an Events API v2 integration."
            ),
        ),
        (
            {"WEBHOOK__URL": "http://127.0.0.1:9/CANARY"},
            (
                "webhook did not accept the opened notification: ConnectionRefusedError. Nothing "
                "listens there: check host and port."
            ),
        ),
        (
            {"COMMAND__ARGUMENTS": "/nowhere/CANARY,--page"},
            (
                "command did not accept the opened notification: FileNotFoundError. The program is "
                "not found or not executable: check the path in arguments."
            ),
        ),
    ],
)
def test_a_refusal_is_shown_with_its_remedy(run, environ, line):
    settings = dict(environ)
    with Receiver(settings.pop("respond", webhook_receiver.ok())) as receiver:
        values = {name: text.format(url=receiver.url) for name, text in settings.items()}
        result = run(**{f"SENTINEL_SINKS__{name}": text for name, text in values.items()})

    assert (result.exit_code, result.output) == (1, f"{line}\n")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"token": "xoxb-other"}, "The token is not valid"),
        ({"channel": "elsewhere"}, "Check the name of the channel"),
    ],
)
def test_an_error_of_slack_is_shown_with_its_remedy(run, settings, remedy):
    with FakeSlack() as slack:
        result = run(**slack_bot(slack, **settings))

    assert result.exit_code == 1
    assert f"HTTP 200. {remedy}" in result.output


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
