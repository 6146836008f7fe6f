"""Buttons in the messages of a Slack bot: acknowledge a case, silence its detectors, mark it.

Slack sends the press of a button over a WebSocket that the agent opens (Socket Mode), so that the
agent needs no public address. With several connections of one app, Slack chooses one of them: a
press concerns any run whose database is on this machine.

A press counts only if its message is one that the run's outbox has a receipt of, in that channel,
and only for the case of that message. It is stored with its author as `sentinel ack`,
`sentinel silence` and `sentinel feedback` do, and then shown in the message.
Source: docs.slack.dev, "Using Socket Mode" and "Interactivity", read in November 2026.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.delivery import Sink
from sentinel.notify.transports.send import send
from sentinel.sinks._case_id import incident_id
from sentinel.sinks.slack_bot import (
    ACKNOWLEDGE_ACTION,
    FALSE_ACTION,
    SILENCE_ACTION,
    USEFUL_ACTION,
    SlackBot,
)
from sentinel.store import cases, database, silences
from sentinel.store.feedback import Feedback, feedback_text, store_feedback
from sentinel.transport.paths import DATABASE_NAME, RunIdError, current_run_dir

log = logging.getLogger(__name__)

SILENCE_SECONDS = 3600.0
COMMENT = "button in Slack"
MARKS = {USEFUL_ACTION: "useful", FALSE_ACTION: "false"}
"""What the buttons about the notification itself stand for."""

_POLL_SECONDS = 0.5
_MIN_RECONNECT_SECONDS, _MAX_RECONNECT_SECONDS = 5.0, 300.0
_MAX_AUTHOR_CHARS = 80


class SlackButtons:
    """Receives presses while it runs, for each bot among `sinks` that has an app token."""

    def __init__(self, sinks: Mapping[str, Sink], clock: Callable[[], float] = time.time) -> None:
        self._bots = [
            sink for sink in sinks.values() if isinstance(sink, SlackBot) and sink.app_token
        ]
        self._clock = clock
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Connect in the background, again and again, until `stop`. Does nothing without a bot."""
        if self._threads or not self._bots:
            return
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._run, args=(bot,), name="slack-buttons", daemon=True)
            for bot in self._bots
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Close the connections. The threads end by themselves if that takes longer."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout)
        self._threads = []

    def _run(self, bot: SlackBot) -> None:
        delay = _MIN_RECONNECT_SECONDS
        while not self._stopping.is_set():
            try:
                was_connected = self._receive(bot)
            except ImportError:
                log.warning("Buttons in Slack need: pip install 'train-sentinel[slack]'")
                return
            except Exception as error:
                # Only the class: a message can contain a token.
                log.warning("Slack refused the connection for buttons: %s", type(error).__name__)
                was_connected = False
            delay = (
                _MIN_RECONNECT_SECONDS if was_connected else min(delay * 2, _MAX_RECONNECT_SECONDS)
            )
            self._stopping.wait(delay)

    def _receive(self, bot: SlackBot) -> bool:
        """Receive until the connection is lost; whether there was one."""
        from slack_sdk import WebClient  # noqa: PLC0415 - an optional dependency
        from slack_sdk.socket_mode import SocketModeClient  # noqa: PLC0415

        assert bot.app_token is not None
        # The library logs addresses with tickets; what matters is logged here.
        silent = logging.getLogger(f"{__name__}.library")
        silent.setLevel(logging.CRITICAL + 1)
        client = SocketModeClient(
            app_token=bot.app_token.get_secret_value(),
            web_client=WebClient(base_url=bot.api_url, logger=silent),
            logger=silent,
            auto_reconnect_enabled=False,
            concurrency=1,
        )
        client.socket_mode_request_listeners.append(
            lambda connection, request: self._handle_request(bot, connection, request)
        )
        try:
            client.connect()
            is_connected = client.is_connected()
            while client.is_connected() and not self._stopping.wait(_POLL_SECONDS):
                continue
            return is_connected
        finally:
            client.close()

    def _handle_request(self, bot: SlackBot, connection: Any, request: Any) -> None:
        from slack_sdk.socket_mode.response import SocketModeResponse  # noqa: PLC0415

        # Slack shows an error to the person after three seconds without it.
        connection.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        if request.type != "interactive":
            return
        try:
            self.handle_press(bot, request.payload)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            log.warning("A press of a button in Slack cannot be read: %s", type(error).__name__)
        except sqlite3.Error as error:
            log.error("A press of a button in Slack is not stored: %s", error)  # noqa: TRY400

    def handle_press(self, bot: SlackBot, payload: Mapping[str, Any]) -> None:
        """Store what a pressed button stands for, and show it in the message.

        Raises AttributeError, KeyError, IndexError, TypeError or ValueError for a payload of
        another form.
        """
        action = payload["actions"][0]
        if action["action_id"] not in {ACKNOWLEDGE_ACTION, SILENCE_ACTION, *MARKS}:
            return
        run, _, case = str(action["value"]).partition("/")
        text = self._store_press(payload, run, case)
        update = _with_note(payload, text)
        response = send(bot.api_request("chat.update", update))
        if not bot.is_accepted(response):
            log.warning("Slack did not show the press of a button (%s)", response)

    def _store_press(self, payload: Mapping[str, Any], run: str, case: str) -> str:
        """Store the press in the database of the run; return a sentence about it."""
        try:
            path = current_run_dir(run) / DATABASE_NAME
        except RunIdError:
            raise ValueError from None
        if not path.is_file():
            return f"Not done: run {run} is on another machine. Use sentinel ack {run} there."
        with closing(database.connect(path)) as connection:
            name = _incident_of_message(connection, payload, case)
            if name is None:
                return "Not done: this is not the newest message of the case."
            author, pressed = _author(payload), payload["actions"][0]["action_id"]
            if pressed in MARKS:
                given = Feedback(MARKS[pressed], self._clock(), author)
                return feedback_text(store_feedback(connection, name, given).to_dict())
            detectors = _detectors_of_case(connection, name)
            if not detectors:
                return "Not done: this message is about no finding of a detector."
            if pressed == ACKNOWLEDGE_ACTION:
                return self._acknowledge(connection, list(detectors), author)
            return self._silence(connection, sorted(set(detectors.values())), author)

    def _acknowledge(self, connection: sqlite3.Connection, names: list[str], author: str) -> str:
        now, count = self._clock(), 0
        for name in names:
            acknowledged = silences.acknowledge(connection, "", now, author, COMMENT, incident=name)
            count += len(acknowledged)
        if not count:
            return "Not acknowledged: the case is over."
        return f"Acknowledged by {author} at {silences.format_utc_time(now)}."

    def _silence(self, connection: sqlite3.Connection, detectors: list[str], author: str) -> str:
        now, ends_at = self._clock(), self._clock() + SILENCE_SECONDS
        for detector in detectors:
            silence = silences.Silence(detector, now, ends_at, author, COMMENT)
            silences.add_silence(connection, silence)
        until = silences.format_utc_time(ends_at)
        return f"{', '.join(detectors)} silenced until {until} by {author}."


def _incident_of_message(
    connection: sqlite3.Connection, payload: Mapping[str, Any], case: str
) -> str | None:
    """The incident that leads the case of the message; None if the outbox does not know both."""
    message = payload["message"]
    receipt = f"{payload['channel']['id']}/{message.get('thread_ts') or message['ts']}"
    query = "select distinct incident from outbox where receipt = ?"
    names = [str(name) for (name,) in connection.execute(query, [receipt])]
    return next((name for name in names if incident_id(name) == case), None)


def _detectors_of_case(connection: sqlite3.Connection, lead: str) -> dict[str, str]:
    """The detectors of the incidents of a case, by the name of the incident."""
    case = cases.cases_by_incident(connection).get(lead)
    names = [lead] if case is None else case["incidents"]
    marks = ", ".join("?" * len(names))
    query = f"select name, detector from incident where name in ({marks})"  # noqa: S608
    return dict(connection.execute(query, names).fetchall())


def _author(payload: Mapping[str, Any]) -> str:
    user = payload["user"]
    name = user.get("username") or user.get("name") or user["id"]
    return clean(str(name), _MAX_AUTHOR_CHARS)


def _with_note(payload: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The pressed message without the button, and with a note; the last mark of a case counts."""
    message, pressed = payload["message"], payload["actions"][0]["action_id"]
    blocks: list[dict[str, Any]] = []
    for block in message["blocks"]:
        if block["type"] != "actions":
            blocks.append(block)
            continue
        rest = [each for each in block["elements"] if each.get("action_id") != pressed]
        blocks += [{**block, "elements": rest}] if rest else []
    note = {"type": "plain_text", "text": clean(text, 1000)}
    return {
        "channel": payload["channel"]["id"],
        "ts": message["ts"],
        "text": message["text"],
        "blocks": [*blocks, {"type": "context", "elements": [note]}],
    }
