"""`sentinel notify`: test the configured sinks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from sentinel.cli._options import error_exit, settings_environ
from sentinel.model.delivery import Sink
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN

app = typer.Typer(no_args_is_help=True)

ERROR_TEXTS = {
    "ConnectionRefusedError": "the connection was refused; check host, port and that it listens",
    "gaierror": "the host name is unknown here; check the URL, and the name server of this machine",
    "DeadlineExceededError": "no response in time; check network, proxy and firewall",
    "SSLCertVerificationError": "the certificate is not valid; check the URL and the certificates",
}
"""Text by class name of a network error; the URL itself is a secret."""

MESSAGE_INTERVAL_SECONDS = 1.0
"""Interval between two messages to a sink: the rate limit of Slack."""


@app.callback()
def notify() -> None:
    """Test the configured sinks."""


@app.command("test")
def send_tests(
    sink: str | None = typer.Option(None, help="Sink to test; by default, all configured ones."),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per notification."),
) -> None:
    """Send a test notification and its resolution to each sink, and show the responses.

    Exit status: 0 if every sink accepted both, 1 if one did not, 2 if the settings are wrong.
    """
    results: list[dict[str, Any]] = []
    for name, selected in _select_sinks(sink, config).items():
        for result in _send_test_notifications(name, selected):
            _print_result(result, as_json=as_json)
            results.append(result)
    raise typer.Exit(0 if all(result["delivered"] for result in results) else 1)


def _select_sinks(name: str | None, config: Path | None) -> dict[str, Sink]:
    from sentinel.config.settings import ConfigError, build_sinks, load_settings

    try:
        sinks = build_sinks(load_settings(environ=settings_environ(config)))
    except ConfigError as error:
        raise error_exit("notify", str(error)) from None
    if not sinks:
        raise error_exit(
            "notify",
            "no sink is configured. Set, for example, SENTINEL_SINKS__SLACK__URL, or url in "
            "[sinks.slack] of sentinel.toml.",
        )
    if name is not None and name not in sinks:
        raise error_exit(
            "notify",
            f"sink {name!r} is not configured. Configured sinks: {', '.join(sorted(sinks))}.",
        )
    return sinks if name is None else {name: sinks[name]}


def _send_test_notifications(name: str, sink: Sink) -> Iterator[dict[str, Any]]:
    from sentinel.notify.outbox import idempotency_key
    from sentinel.notify.sink_worker import is_accepted, render
    from sentinel.notify.transports.send import send

    receipt: str | None = None
    for number, notification in enumerate(build_test_notifications(time.time())):
        if number:
            time.sleep(MESSAGE_INTERVAL_SECONDS)
        key = idempotency_key(notification, name)
        response = send(render(sink, notification, key, receipt, time.time()))
        delivered = is_accepted(sink, response)
        receipt = sink.receipt(response) if delivered else None
        yield {
            "type": "delivery",
            "sink": name,
            "notification": notification.reason.value,
            "delivered": delivered,
            "response": str(response),
        }
        if not delivered:
            return


def _print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
    else:
        verb = "accepted" if result["delivered"] else "did not accept"
        text = f"{verb} the {result['notification']} notification: "
        text += ERROR_TEXTS.get(result["response"], result["response"])
        print(f"{result['sink']} {text}", flush=True)


def build_test_notifications(now: float) -> tuple[Notification, Notification]:
    """The notification of a test incident and that of its resolution, with a new run id."""
    opened = Incident(
        key=IncidentKey(f"test-{int(now * 1000)}", WHOLE_RUN, "notify_test"),
        episode=1,
        severity=Severity.INFO,
        signal="loss",
        remedy="None: this notification was sent by `sentinel notify test`.",
        finding=Finding("TEST: nothing is wrong; this message tests the delivery.", {"loss": 1.5}),
        onset_step=1,
        opened_step=2,
        opened_time=now,
        state=IncidentState.FIRING,
    )
    resolved = replace(opened, state=IncidentState.RESOLVED, resolved_step=3, resolved_time=now)
    return Notification(NotificationReason.OPENED, opened, 2, now), Notification(
        NotificationReason.RESOLVED, resolved, 3, now
    )
