"""The Socket Mode of `FakeSlack`: a WebSocket over which presses of buttons arrive."""

from __future__ import annotations

import json
import queue
import threading
from contextlib import contextmanager, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

ARRIVAL_SECONDS = 240.0


class SlackSocket:
    """The connections of one app. Each gets the envelopes that the test sends."""

    def __init__(self):
        self.connections = queue.SimpleQueue()
        self.answers = queue.SimpleQueue()
        self._number = 0

    def serve(self, connection):
        connection.send(json.dumps({"type": "hello", "num_connections": 1}))
        self.connections.put(connection)
        with suppress(ConnectionClosed):
            for text in connection:
                self.answers.put(json.loads(text))

    def press(self, connection, payload):
        """Send an interaction, and return the acknowledgement of the agent."""
        self._number += 1
        envelope = {"envelope_id": f"e{self._number}", "type": "interactive", "payload": payload}
        connection.send(json.dumps(envelope))
        return self.answers.get(timeout=ARRIVAL_SECONDS)


def press_of(message, action_id, user="ana", channel="C1"):
    """The payload of a press of that button in a message of `FakeSlack`, as Slack sends it."""
    (actions,) = [block for block in message["blocks"] if block["type"] == "actions"]
    (button,) = [each for each in actions["elements"] if each["action_id"] == action_id]
    return {
        "type": "block_actions",
        "team": {"id": "T1", "domain": "example"},
        "channel": {"id": channel, "name": "training"},
        "user": {"id": "U1", "username": user, "name": user, "team_id": "T1"},
        "container": {"type": "message", "message_ts": message["ts"], "channel_id": channel},
        "message": {key: value for key, value in message.items() if key != "channel"},
        "actions": [{**button, "type": "button", "action_ts": "1700000099.000001"}],
    }


@contextmanager
def slack_socket(slack):
    """The socket of that workspace."""
    socket = SlackSocket()
    with serve(socket.serve, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        slack.socket_url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/?ticket=CANARY"
        yield socket
        server.shutdown()
        thread.join()
