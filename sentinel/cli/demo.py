"""`sentinel demo`: trains a model, injects faults and shows the notifications."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sentinel.demo.receiver import DemoReceiver, ReceivedNotification
    from sentinel.demo.report import DemoReport
    from sentinel.demo.sandbox import Sandbox
    from sentinel.demo.scenario import DemoOutcome

DEMO_TIMEOUT_SECONDS = 600.0
"""Seconds after which the demo is stopped and fails; it takes about 60 s on 2 cores."""
POLL_INTERVAL_SECONDS = 0.5


def demo(
    seed: int = typer.Option(0, min=0, help="Random seed of the training."),
    keep: bool = typer.Option(
        False, "--keep", help="Keep checkpoints, logs, database and Slack messages."
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON: one object per notification."),
) -> None:
    """Train a small language model in 4 processes, inject two faults and show the notifications.

    Exit status: 0 if each fault was reported once with its cause and nothing else was reported, 1
    if not, 2 if a requirement is missing.
    """
    from sentinel.demo.report import DemoReport
    from sentinel.demo.sandbox import Sandbox

    _check_requirements()
    folder = Path(tempfile.mkdtemp(prefix="sentinel-demo-"))
    with DemoReport(json_lines=json) as report:
        report.print_text(f"All files of this demo are in {folder}.")
        outcome = _run_demo(Sandbox(folder, seed), report, keep=keep)
    raise typer.Exit(0 if outcome.passed else 1)


def _check_requirements() -> None:
    from sentinel.demo.sandbox import missing_requirement

    missing = missing_requirement()
    if missing:
        print(f"sentinel demo: {missing}", file=sys.stderr)
        raise typer.Exit(2)


def _run_demo(sandbox: Sandbox, report: DemoReport, *, keep: bool) -> DemoOutcome:
    """Run the demo. All processes are stopped; the directory is kept if the demo failed."""
    from sentinel.demo.receiver import DemoReceiver
    from sentinel.demo.scenario import evaluate_demo

    began = time.monotonic()
    secret = secrets.token_urlsafe(24)
    with DemoReceiver(secret, sandbox.folder) as receiver:
        sandbox.configure(receiver.url, secret)
        report.print_text(
            f"Notifications are sent to a local receiver at {receiver.url} in place of Slack and "
            "an on-call service."
        )
        try:
            sandbox.start()
            deadline = began + DEMO_TIMEOUT_SECONDS
            notifications = _collect_until_finished(sandbox, receiver, report, deadline)
        finally:
            sandbox.stop()
    _report_training_end(sandbox, report)
    outcome = evaluate_demo(notifications, sandbox.case_causes)
    kept = sandbox.folder if keep or not outcome.passed else None
    report.show_outcome(outcome, notifications, time.monotonic() - began, kept)
    if kept is None:
        shutil.rmtree(sandbox.folder)
    return outcome


def _collect_until_finished(
    sandbox: Sandbox, receiver: DemoReceiver, report: DemoReport, deadline: float
) -> list[ReceivedNotification]:
    """Show progress until training and agent have ended; return the notifications."""
    notifications: list[ReceivedNotification] = []
    is_live = is_over = False
    while not is_over and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_SECONDS)
        state = sandbox.poll()
        is_over = not state and sandbox.exit_status is not None and sandbox.agent is None
        if state and not is_live:
            is_live = True
            url = sandbox.url
            report.print_text(f"Web page of the run: {url}/. Prometheus metrics: {url}/metrics.")
        notifications += _collect_deliveries(receiver, report)
        if state:
            report.show_progress(state)
    if not is_over:
        report.print_text(f"[red]Stopped: not finished within {DEMO_TIMEOUT_SECONDS:.0f} s.[/]")
    return notifications


def _collect_deliveries(receiver: DemoReceiver, report: DemoReport) -> list[ReceivedNotification]:
    from sentinel.demo.receiver import ReceivedNotification

    notifications: list[ReceivedNotification] = []
    while not receiver.received.empty():
        item = receiver.received.get()
        report.show_notification(item)
        if isinstance(item, ReceivedNotification):
            notifications.append(item)
    return notifications


def _report_training_end(sandbox: Sandbox, report: DemoReport) -> None:
    from rich.markup import escape

    if sandbox.exit_status:
        log = (sandbox.folder / "training.log").read_text(errors="replace")
        status = sandbox.exit_status
        report.print_text(f"[red]The training failed with exit status {status}.[/] Its last lines:")
        report.print_text(escape("\n".join(log.splitlines()[-15:])))
    report.print_text(
        f"The training wrote {sandbox.checkpoint_count} checkpoints; its settings ask for "
        f"{sandbox.expected_checkpoints}."
    )
