"""A process that stops while it sends the end of a case of a dead run stores the response."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest
from support.notifications import make_notification
from support.rank_processes import until
from support.webhook_receiver import Mode, Receiver

from sentinel.model.delivery import sink_address
from sentinel.notify import outbox
from sentinel.sinks.webhook import Webhook
from sentinel.store import database
from sentinel.store.cases import store_case
from sentinel.store.history import History
from sentinel.transport.paths import DATABASE_NAME, run_dir

TIMEOUT_SECONDS = 240.0
RESPONSE_SECONDS = 0.5
"""Longer than the processes need to stop if they do not wait for the response."""
DEAD = "train-0a1b2c"
OPENED = make_notification(run=DEAD, detector="run_died", summary="Rank 1 was killed.")
SCRIPT = """
from sentinel.agent import dead_run_closer
dead_run_closer.FIRST_PASS_SECONDS = 0.0
from sentinel.cli.main import app
app()
"""


def outbox_states():
    with closing(database.connect(run_dir(DEAD) / DATABASE_NAME)) as connection:
        return [state for (state,) in connection.execute("select state from outbox order by rowid")]


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["agent", "--run", "live"]])
def test_a_response_to_the_end_of_a_case_is_stored_before_the_process_ends(command):
    """The end was sent again at the next pass."""
    stopped = []

    def respond_after_stop(handler):
        until(lambda: stopped, TIMEOUT_SECONDS, "the stop begins")
        time.sleep(RESPONSE_SECONDS)
        handler.send(200, b"ok")

    with Receiver(Mode(respond_after_stop, accepts=True)) as receiver:
        path = run_dir(DEAD) / DATABASE_NAME
        with closing(database.connect(path)) as connection:
            History(connection).store_incident(OPENED.incident)
            store_case(connection, OPENED)
            outbox.store_addresses(connection, {"webhook": sink_address(Webhook(receiver.url))})
            outbox.enqueue(connection, OPENED, ["webhook"])
            outbox.mark_delivered(connection, outbox.idempotency_key(OPENED, "webhook"))
        summary = {"run": DEAD, "state": "died", "health": "critical"}
        (path.parent / "summary.json").write_text(json.dumps(summary))

        environ = os.environ | {
            "SENTINEL_PORT": "0",
            "SENTINEL_RUN_ID": "live",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
        }
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, *command], env=environ)
        until(lambda: receiver.requests, TIMEOUT_SECONDS, "the end of the case is sent")
        process.terminate()
        stopped.append(True)
        process.wait(TIMEOUT_SECONDS)

    assert outbox_states() == ["delivered", "delivered"]
