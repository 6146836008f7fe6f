"""`sentinel notify`: test the configured sinks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from sentinel.cli._options import error_exit, exit_on, settings_environ
from sentinel.model.delivery import ExplainingSink, HttpRequest, Response, Sink
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason, RunContext
from sentinel.model.record import WHOLE_RUN

app = typer.Typer(no_args_is_help=True)

ERROR_REMEDIES = {
    "ConnectionRefusedError": "Nothing listens there: check host and port.",
    "ConnectionError": "The connection failed: check host, port, network and proxy.",
    "gaierror": "The host name is unknown here: check it, and the name server of this machine.",
    "DeadlineExceededError": "There was no response in time: check network, proxy and firewall.",
    "SSLCertVerificationError": "The certificate is not valid: check the host name, and the "
    "certificates of this machine.",
    "SSLError": "There is no TLS at this port: check port and security.",
    "SSLEOFError": "The receiver closed the connection while TLS was set up: check that it runs.",
    "SSLZeroReturnError": "The receiver closed the connection of TLS: check that it runs.",
    "AddressRefusedError": "Notifications are not sent to this address: it is not encrypted, or "
    "belongs to the metadata service of a cloud.",
}
"""What to do by class name of an error; the URL itself is a secret."""

STATUS_REMEDIES = {
    200: "Another program responded, such as a proxy that asks for a login: check URL and proxy.",
    301: "The receiver has moved, and redirects are not followed: set the new URL.",
    302: "The receiver has moved, and redirects are not followed: set the new URL.",
    307: "The receiver has moved, and redirects are not followed: set the new URL.",
    308: "The receiver has moved, and redirects are not followed: set the new URL.",
    400: "The receiver does not understand the message: check the kind of the sink.",
    401: "The receiver does not accept the credentials: check them.",
    403: "The receiver does not accept the credentials: check them.",
    404: "Nothing is at this URL: it is mistyped, or was revoked.",
    410: "Nothing is at this URL any more: it was revoked.",
    429: "Too many messages were sent: try again later.",
}
"""What to do by HTTP status, where the sink does not know better."""

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
    """Send a test incident to each sink, change it where messages can be changed, and resolve it.

    Exit status: 0 if every sink accepted all, 1 if one did not, 2 if the settings are wrong.
    """
    results: list[dict[str, Any]] = []
    for name, selected in _select_sinks(sink, config).items():
        for result in _send_test_notifications(name, selected):
            _print_result(result, as_json=as_json)
            results.append(result)
    raise typer.Exit(0 if all(result["delivered"] for result in results) else 1)


def _select_sinks(name: str | None, config: Path | None) -> dict[str, Sink]:
    from sentinel.config.settings import ConfigError, build_sinks, load_settings

    with exit_on("notify", ConfigError):
        sinks = build_sinks(load_settings(environ=settings_environ(config)))
    if not sinks:
        raise error_exit(
            "notify",
            "no sink is configured. Set, for example, SENTINEL_SINKS__SLACK__URL, or url in "
            "[sinks.slack] of sentinel.toml; docs/notifications.md shows every receiver.",
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
    for number, notification in enumerate(build_test_notifications(time.time(), sink.can_update)):
        if number:
            time.sleep(MESSAGE_INTERVAL_SECONDS)
        key = idempotency_key(notification, name)
        delivery = render(sink, notification, key, receipt, time.time())
        response = send(delivery)
        delivered = is_accepted(sink, response)
        if delivered:
            receipt = sink.receipt(response) or receipt
            if isinstance(delivery, HttpRequest) and delivery.follow_up is not None:
                send(delivery.follow_up)
        yield {
            "type": "delivery",
            "sink": name,
            "notification": notification.reason.value,
            "delivered": delivered,
            "response": str(response),
            "remedy": "" if delivered else _remedy(sink, response),
        }
        if not delivered:
            return


def _remedy(sink: Sink, response: Response) -> str:
    """What to do about a refusal: what the sink knows, else by error class or HTTP status."""
    explained = sink.explain(response) if isinstance(sink, ExplainingSink) else ""
    if explained:
        return explained
    if response.error or response.protocol != "HTTP":
        return ERROR_REMEDIES.get(response.error, "")
    if response.status >= 500:
        return "The receiver failed: try again later."
    return STATUS_REMEDIES.get(response.status, "")


def _print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
        return
    verb = "accepted" if result["delivered"] else "did not accept"
    text = f"{result['sink']} {verb} the {result['notification']} notification"
    remedy = f". {result['remedy']}" if result["remedy"] else ""
    print(f"{text}: {result['response']}{remedy}", flush=True)


def build_test_notifications(now: float, can_update: bool) -> list[Notification]:
    """The notifications of a test incident with a new run id: opened, updated, resolved."""
    opened = Incident(
        key=IncidentKey(f"test-{int(now * 1000)}", WHOLE_RUN, "notify_test"),
        episode=1,
        severity=Severity.WARNING,
        signal="loss",
        remedy="Nothing: `sentinel notify test` sent this.",
        finding=Finding("TEST: nothing is wrong. This message tests the delivery."),
        onset_step=1,
        opened_step=2,
        opened_time=now,
        state=IncidentState.FIRING,
        title="TEST: check of the delivery",
    )
    finding = Finding("TEST: nothing is wrong. This message was updated.")
    resolved = replace(opened, state=IncidentState.RESOLVED, resolved_step=3, resolved_time=now)
    context = RunContext(host=socket.gethostname(), command="sentinel notify test")
    notifications = [
        Notification(NotificationReason.OPENED, opened, 2, now, context=context),
        Notification(
            NotificationReason.UPDATED,
            replace(opened, finding=finding),
            2,
            now,
            number=1,
            context=context,
        ),
        Notification(NotificationReason.RESOLVED, resolved, 3, now, context=context),
    ]
    return [
        each
        for each in notifications
        if can_update or each.reason is not NotificationReason.UPDATED
    ]
