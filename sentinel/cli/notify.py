"""`sentinel notify`: try out the ways by which pages reach people."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.request import Sink

app = typer.Typer(no_args_is_help=True)

MESSAGE_INTERVAL_SECONDS = 1.0
"""Seconds between two messages to one sink, as Slack asks for."""


@app.callback()
def notify() -> None:
    """Try out the ways by which pages reach people."""


@app.command("test")
def send_tests(
    sink: str | None = typer.Option(None, help="Only this sink; by default all that are set up."),
    config: Path | None = typer.Option(None, help="A sentinel.toml to read."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per page sent."),
) -> None:
    """Send a test page that opens and resolves to each sink, and say what came of it.

    Exit status: 0 if every sink took both pages, 1 if one did not, 2 if the settings are wrong.
    """
    results: list[dict[str, Any]] = []
    for name, found in _select_sinks(sink, config).items():
        for result in _send_test_notifications(name, found):
            _print_result(result, as_json=as_json)
            results.append(result)
    raise typer.Exit(0 if all(result["delivered"] for result in results) else 1)


def _select_sinks(only: str | None, config: Path | None) -> dict[str, Sink]:
    from sentinel.config.settings import ConfigError, build_sinks, load_settings

    environ = os.environ if config is None else {**os.environ, "SENTINEL_CONFIG": str(config)}
    try:
        sinks = build_sinks(load_settings(environ=environ))
    except ConfigError as error:
        _exit_with_error(str(error))
    if not sinks:
        _exit_with_error(
            "No sink is set up. Set SENTINEL_SINKS__SLACK__URL, or [sinks.slack] url in a file."
        )
    if only is not None and only not in sinks:
        _exit_with_error(
            f'Sink "{only}" is not set up. Those that are: {", ".join(sorted(sinks))}.'
        )
    return sinks if only is None else {only: sinks[only]}


def _exit_with_error(why: str) -> Any:
    print(f"sentinel notify: {why}", file=sys.stderr)
    raise typer.Exit(2)


def _send_test_notifications(name: str, sink: Sink) -> Iterator[dict[str, Any]]:
    from sentinel.notify.http import send
    from sentinel.notify.outbox import idempotency_key
    from sentinel.notify.sink_worker import render_request

    for number, page in enumerate(build_test_notifications(time.time())):
        if number:
            time.sleep(MESSAGE_INTERVAL_SECONDS)
        post = render_request(sink, page, idempotency_key(page, name), time.time())
        answer = send(post, allow_http=bool(getattr(sink, "allow_http", False)))
        delivered = not answer.error and sink.is_accepted(answer.status, answer.body)
        yield {
            "type": "delivery",
            "sink": name,
            "page": page.reason.value,
            "delivered": delivered,
            "answer": str(answer),
        }
        if not delivered:
            return


def _print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
    else:
        verb = "took" if result["delivered"] else "did not take"
        print(f"{result['sink']} {verb} the {result['page']} page: {result['answer']}", flush=True)


def build_test_notifications(now: float) -> tuple[Notification, Notification]:
    """A page that opens and the page that resolves it, plainly tests, and new at every `now`."""
    opened = Incident(
        key=IncidentKey(f"test-{int(now * 1000)}", WHOLE_RUN, "notify_test"),
        episode=1,
        severity=Severity.INFO,
        signal="loss",
        remedy="Nothing: this page came from `sentinel notify test`.",
        finding=Finding(
            "TEST: nothing is wrong, somebody tries out the way to you.", {"loss": 1.5}
        ),
        onset_step=1,
        opened_step=2,
        opened_time=now,
        state=IncidentState.FIRING,
    )
    over = replace(opened, state=IncidentState.RESOLVED, resolved_step=3, resolved_time=now)
    return Notification(NotificationReason.OPENED, opened, 2, now), Notification(
        NotificationReason.RESOLVED, over, 3, now
    )
