"""`sentinel demo`: train for real, break it on purpose, and see who is told what."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import typer
from rich.markup import escape

from sentinel.demo.delivery import ReceivedNotification
from sentinel.demo.receiver import DemoReceiver
from sentinel.demo.report import DemoReport
from sentinel.demo.sandbox import Sandbox, missing_requirement
from sentinel.demo.scenario import DemoOutcome, evaluate_demo

DEMO_TIMEOUT_SECONDS = 600.0
"""Seconds after which a demo that has not ended has failed; it takes about 60 on 2 cores."""
POLL_INTERVAL_SECONDS = 0.5


def demo(
    seed: int = typer.Option(0, min=0, help="Seed of the training: another run, other numbers."),
    keep: bool = typer.Option(False, help="Keep the folder with checkpoints, logs and database."),
    json: bool = typer.Option(False, "--json", help="One JSON object per page, and a summary."),
) -> None:
    """Train a small language model on 4 processes, break it on purpose, and see who is told.

    Exit status: 0 if each mistake was told once and by its name, and nothing else was; 1 if not; 2
    if it cannot be tried.
    """
    _check_requirements()
    folder = Path(tempfile.mkdtemp(prefix="sentinel-demo-"))
    with DemoReport(json_lines=json) as telling:
        telling.print_text(f"Everything of this demo is in {folder}.")
        outcome = _run_demo(Sandbox(folder, seed), telling, keep=keep)
    raise typer.Exit(0 if outcome.passed else 1)


def _check_requirements() -> None:
    lacks = missing_requirement()
    if lacks:
        print(f"sentinel demo: {lacks}", file=sys.stderr)
        raise typer.Exit(2)


def _run_demo(stage: Sandbox, telling: DemoReport, *, keep: bool) -> DemoOutcome:
    """One demo from start to end. No process is ever left; the folder is, where it failed."""
    began = time.monotonic()
    secret = secrets.token_urlsafe(24)
    with DemoReceiver(secret) as receiver:
        stage.configure(receiver.url, secret)
        telling.print_text(
            f"Pages go to a receiver at {receiver.url}, in place of Slack and a pager."
        )
        try:
            stage.start()
            pages = _collect_until_finished(stage, receiver, telling, began + DEMO_TIMEOUT_SECONDS)
        finally:
            stage.stop()
    _report_training_end(stage, telling)
    outcome = evaluate_demo(pages, stage.case_causes)
    kept = stage.folder if keep or not outcome.passed else None
    telling.show_outcome(outcome, pages, time.monotonic() - began, kept)
    if kept is None:
        shutil.rmtree(stage.folder)
    return outcome


def _collect_until_finished(
    stage: Sandbox, receiver: DemoReceiver, telling: DemoReport, deadline: float
) -> list[ReceivedNotification]:
    """Show what happens until the training is over and the agent has left; return the pages."""
    pages: list[ReceivedNotification] = []
    live = over = False
    while not over and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_SECONDS)
        state = stage.poll()
        over = not state and stage.exit_status is not None and not stage.is_watched
        if state and not live:
            live = True
            url = stage.agent_info["url"]
            telling.print_text(f"Live now: {url}/metrics for Prometheus, {url}/ for people.")
        pages += _collect_deliveries(receiver, telling)
        if state:
            telling.show_progress(state)
    if not over:
        telling.print_text(f"[red]Not over after {DEMO_TIMEOUT_SECONDS:.0f} s: ended.[/]")
    return pages


def _collect_deliveries(receiver: DemoReceiver, telling: DemoReport) -> list[ReceivedNotification]:
    pages: list[ReceivedNotification] = []
    while not receiver.received.empty():
        item = receiver.received.get()
        telling.show_notification(item)
        if isinstance(item, ReceivedNotification):
            pages.append(item)
    return pages


def _report_training_end(stage: Sandbox, telling: DemoReport) -> None:
    if stage.exit_status:
        log = (stage.folder / "training.log").read_text(errors="replace")
        telling.print_text(
            f"[red]The training failed with status {stage.exit_status}.[/] It said last:"
        )
        telling.print_text(escape("\n".join(log.splitlines()[-15:])))
    telling.print_text(
        f"{stage.checkpoint_count} checkpoints were written, where {stage.expected_checkpoints} were meant."
    )
