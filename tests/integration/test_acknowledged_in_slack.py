"""A button that somebody presses in Slack acknowledges the case at the agent, and at PagerDuty."""

import pytest
from support.rank_processes import ranks, until
from support.slack_socket import ARRIVAL_SECONDS, press_of, slack_socket
from support.vendors import (
    PAGERDUTY_KEY,
    SLACK_APP_TOKEN,
    SLACK_TOKEN,
    FakePagerduty,
    FakeSlack,
)

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.sinks.slack_bot import ACKNOWLEDGE_ACTION, SILENCE_ACTION

pytest.importorskip("slack_sdk")
pytest.importorskip("websockets")

TIMEOUT_SECONDS = 240.0
LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture
def vendors(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)
    with FakeSlack() as slack, FakePagerduty() as pagerduty:
        yield slack, pagerduty


def settings(slack, pagerduty):
    bot = {"token": SLACK_TOKEN, "app_token": SLACK_APP_TOKEN, "channel": "training"}
    sinks = {
        "slack_bot": {**bot, "api_url": slack.api_url},
        "pagerduty": {"routing_key": PAGERDUTY_KEY, "url": pagerduty.url},
    }
    return load_settings({"port": 0, "sinks": sinks, "linger_seconds": 0.0})


@pytest.fixture
def agent(vendors):
    """An agent of a rank with NaN loss; the test runs its loop."""
    with ranks() as start_rank:
        start_rank(0, world=1, steps=20, values={"loss": LOSSES})
        agent = Agent("live", settings(*vendors))
        agent.dispatcher.start()
        yield agent
        agent.slack_buttons.stop()
        agent.dispatcher.stop(TIMEOUT_SECONDS)
        agent.processor.onset_worker.stop(TIMEOUT_SECONDS)
        agent.connection.close()


def run_until(agent, condition):
    def run_once():
        agent.run_once()
        return condition()

    until(run_once, TIMEOUT_SECONDS, "condition met")


def test_an_acknowledgement_reaches_every_receiver(vendors, agent):
    slack, pagerduty = vendors
    with slack_socket(slack) as socket:
        run_until(agent, lambda: slack.posts and pagerduty.alerts)
        (message,), (events,) = slack.posts, pagerduty.alerts.values()
        connection = socket.connections.get(timeout=ARRIVAL_SECONDS)
        # A person presses later than the agent stores which message Slack has accepted.
        query = "select 1 from outbox where sink = 'slack_bot' and receipt is not null"
        run_until(agent, lambda: agent.connection.execute(query).fetchone())
        socket.press(connection, press_of(message, ACKNOWLEDGE_ACTION))
        run_until(agent, lambda: "acknowledge" in [each["event_action"] for each in events])
        run_until(agent, lambda: "by ana" in str(slack.thread(message)))

    assert "Acknowledged at" in str(message["blocks"])
    assert ACKNOWLEDGE_ACTION not in str(message["blocks"])
    assert SILENCE_ACTION in str(message["blocks"])
