"""docs/notifications.md shows a table of settings for every sink, and each is accepted."""

import re
from pathlib import Path

import pytest

from sentinel.config import plugins
from sentinel.config.settings import load_settings
from sentinel.model.notification import NotificationReason

PAGE = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SECRETS = {
    "slack_webhook": "https://hooks.example.org/T0/B0",
    "pagerduty_key": "0" * 32,
    "discord_webhook": "https://discord.example/api/webhooks/1/x",
    "apprise_url": "ntfy://topic",
    "ping_url": "https://hc.example/1234",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_accepted(example, tmp_path):
    for name in re.findall(r"/run/secrets/(\w+)", example):
        (tmp_path / name).write_text(SECRETS.get(name, "a-secret"))
    text = example.replace("/run/secrets", f"{tmp_path}")
    (tmp_path / "sentinel.toml").write_text(text)

    settings = load_settings(environ={}, cwd=tmp_path)
    assert settings.sinks or settings.ping_url


def test_every_reason_has_a_row():
    section = PAGE.partition("## What is sent when")[2].partition("What each sink")[0]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == [
        reason.value for reason in NotificationReason
    ]


def test_every_sink_has_an_example_and_a_row():
    kinds = plugins.load_classes("sinks")
    tables = "\n".join(EXAMPLES)
    without_example = [
        kind for kind in kinds if f"[sinks.{kind}]" not in tables and f'"{kind}"' not in tables
    ]

    assert without_example == []
    assert [kind for kind in kinds if f"\n| `{kind}` |" not in PAGE] == []
