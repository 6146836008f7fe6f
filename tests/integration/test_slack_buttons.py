"""Buttons in Slack messages: a press reaches the run through Socket Mode, and is shown."""

import logging
import time
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from support.notifications import make_notification
from support.slack_socket import ARRIVAL_SECONDS, press_of, slack_socket
from support.vendors import SLACK_APP_TOKEN, SLACK_TOKEN, FakeSlack

from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.sink_worker import DeliveryTiming, SinkWorker
from sentinel.notify.slack_buttons import SILENCE_SECONDS, SlackButtons
from sentinel.sinks.slack_bot import (
    ACKNOWLEDGE_ACTION,
    FALSE_ACTION,
    SILENCE_ACTION,
    USEFUL_ACTION,
    SlackBot,
)
from sentinel.store import cases, silences
from sentinel.store.database import connect
from sentinel.store.feedback import Feedback, load_feedback
from sentinel.transport.paths import run_dir

pytest.importorskip("slack_sdk")
pytest.importorskip("websockets")

OPENED = make_notification(severity=Severity.WARNING)
NAME = OPENED.incident.name
NOW = time.time()


@pytest.fixture
def slack():
    with FakeSlack() as fake:
        yield fake


@pytest.fixture
def bot(slack):
    return SlackBot(
        token=SLACK_TOKEN, channel="training", app_token=SLACK_APP_TOKEN, api_url=slack.api_url
    )


@pytest.fixture
def connection(tmp_path, monkeypatch):
    """The database of the run, with its firing case."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    with closing(connect(run_dir("grpo-7b") / "sentinel.db")) as connection:
        _store_incident(connection, OPENED.incident)
        cases.store_case(connection, OPENED)
        yield connection


def _store_incident(connection, incident):
    columns = [row[1] for row in connection.execute("pragma table_info(incident)")]
    known = {
        "name": incident.name,
        "detector": incident.key.detector,
        "severity": incident.severity.value,
        "state": incident.state.value,
    }
    values = [known.get(column, 0) for column in columns]
    marks = ", ".join("?" * len(columns))
    connection.execute(f"insert into incident({', '.join(columns)}) values({marks})", values)


@pytest.fixture
def message(connection, bot, slack):
    """The first message of the case."""
    worker = SinkWorker(
        "slack_bot", bot, connection, Counters(), time.time, DeliveryTiming(min_interval_seconds=0)
    )
    outbox.enqueue(connection, OPENED, ["slack_bot"], time.time())
    worker.deliver_next()
    (message,) = slack.posts
    return message


@pytest.fixture
def buttons(bot, monkeypatch):
    monkeypatch.setattr("sentinel.notify.slack_buttons._MIN_RECONNECT_SECONDS", 0.05)
    return SlackButtons({"slack_bot": bot}, lambda: NOW)


def note(slack):
    (first,) = slack.posts
    return first["blocks"][-1]["elements"][0]["text"]


def shown_actions(message):
    """The buttons that a message has."""
    blocks = [block for block in message["blocks"] if block["type"] == "actions"]
    return [each["action_id"] for block in blocks for each in block["elements"]]


def wait_for(poll):
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while not poll() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert poll()


def test_presses_are_stored_with_their_author_and_shown(
    slack, message, connection, buttons, caplog
):
    """Between the two, Slack closes the connection."""
    with caplog.at_level(logging.DEBUG), slack_socket(slack) as socket:
        buttons.start()
        try:
            agent = socket.connections.get(timeout=ARRIVAL_SECONDS)
            answer = socket.press(agent, press_of(message, ACKNOWLEDGE_ACTION))
            wait_for(lambda: "Acknowledged" in str(message["blocks"]))
            agent.close()
            agent = socket.connections.get(timeout=ARRIVAL_SECONDS)
            socket.press(agent, press_of(message, SILENCE_ACTION))
            wait_for(lambda: "silenced" in str(message["blocks"]))
        finally:
            buttons.stop()

    assert answer["envelope_id"] == "e1"
    (ack,) = silences.load_acks(connection).values()
    assert (ack.incident, ack.severity, ack.author) == (NAME, Severity.WARNING, "ana")
    (silence,) = silences.active_silences(connection, NOW)
    assert (silence.detector, silence.author) == ("kl_blowup", "ana")
    assert silence.ends_at == NOW + SILENCE_SECONDS
    assert shown_actions(message) == [USEFUL_ACTION, FALSE_ACTION]
    ours = [each.getMessage() for each in caplog.records if "websockets" not in each.name]
    assert "CANARY" not in "".join(ours)


def test_a_mark_is_stored_also_once_the_case_is_over(bot, buttons, message, connection):
    cases.store_case(connection, replace(OPENED, reason=NotificationReason.RESOLVED))
    buttons.handle_press(bot, press_of(message, FALSE_ACTION))
    assert load_feedback(connection)[NAME] == Feedback("false", NOW, "ana")
    assert shown_actions(message) == [ACKNOWLEDGE_ACTION, SILENCE_ACTION, USEFUL_ACTION]
    assert "Marked as a false alarm by ana." in str(message["blocks"])

    buttons.handle_press(bot, press_of(message, USEFUL_ACTION))
    assert load_feedback(connection)[NAME].mark == "useful"


@pytest.mark.parametrize(
    "change",
    [
        {"channel": {"id": "C2"}},
        {"message": {"ts": "1700000000.999999", "text": "x", "blocks": []}},
        {"actions": [{"action_id": ACKNOWLEDGE_ACTION, "value": "grpo-7b/" + "0" * 32}]},
    ],
    ids=["another channel", "another message", "another case"],
)
def test_a_press_that_is_not_of_a_message_of_the_case_counts_for_nothing(
    change, bot, buttons, message, connection
):
    buttons.handle_press(bot, press_of(message, ACKNOWLEDGE_ACTION) | change)

    assert silences.load_acks(connection) == {}


@pytest.mark.parametrize("value", ["../../etc/x", "", "unknown-run/0", 5, None])
def test_a_hostile_value_is_refused(value, bot, buttons, message, connection):
    press = press_of(message, ACKNOWLEDGE_ACTION)
    press["actions"][0]["value"] = value
    with suppress(ValueError):
        buttons.handle_press(bot, press)

    assert silences.load_acks(connection) == {}


def test_a_run_of_another_machine_is_named(slack, bot, buttons, message):
    press = press_of(message, ACKNOWLEDGE_ACTION)
    press["actions"][0]["value"] = "elsewhere/0"
    buttons.handle_press(bot, press)

    assert note(slack) == (
        "Not done: run elsewhere is on another machine. Use sentinel ack elsewhere there."
    )


def test_an_escalated_case_can_be_acknowledged_from_its_new_message(
    slack, bot, buttons, message, connection
):
    worker = SinkWorker(
        "slack_bot", bot, connection, Counters(), time.time, DeliveryTiming(min_interval_seconds=0)
    )
    critical = replace(
        OPENED,
        reason=NotificationReason.ESCALATED,
        incident=replace(OPENED.incident, severity=Severity.CRITICAL),
    )
    outbox.enqueue(connection, critical, ["slack_bot"], time.time())
    worker.deliver_next()
    cases.store_case(connection, critical)
    buttons.handle_press(bot, press_of(slack.posts[1], ACKNOWLEDGE_ACTION))

    (ack,) = silences.load_acks(connection).values()
    assert (ack.incident, ack.severity) == (NAME, Severity.CRITICAL)


def test_a_case_whose_first_incident_is_over_can_be_acknowledged(bot, buttons, message, connection):
    other = make_notification(detector="reward_collapse", severity=Severity.WARNING).incident
    _store_incident(connection, other)
    connection.execute("update incident set state = 'resolved' where name = ?", [NAME])
    cases.store_case(connection, replace(OPENED, others=(other,)))
    buttons.handle_press(bot, press_of(message, ACKNOWLEDGE_ACTION))

    assert set(silences.load_acks(connection)) == {other.name}


@pytest.mark.parametrize("action", [ACKNOWLEDGE_ACTION, SILENCE_ACTION])
def test_a_message_without_an_incident_of_a_detector_is_named_as_such(
    slack, bot, buttons, message, connection, *, action
):
    connection.execute("delete from incident")
    connection.execute("delete from case_history")
    buttons.handle_press(bot, press_of(message, action))

    assert note(slack) == "Not done: this message is about no finding of a detector."
    assert silences.active_silences(connection, NOW) == ()


def test_without_an_app_token_there_are_no_buttons_and_no_thread(slack):
    bot = SlackBot(token=SLACK_TOKEN, channel="training", api_url=slack.api_url)
    buttons = SlackButtons({"slack_bot": bot})
    buttons.start()

    assert "actions" not in str(bot.render(OPENED, "0" * 32, None).body)
    assert buttons._threads == []
