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

from sentinel.demo.delivery import Delivery
from sentinel.demo.receiver import Receiver
from sentinel.demo.report import Telling
from sentinel.demo.sandbox import Stage, lacking
from sentinel.demo.scenario import Outcome, judge

LONGEST = 600.0
"""Seconds after which a demo that has not ended has failed; it takes about 60 on 2 cores."""
LOOK_EVERY = 0.5


def demo(
    seed: int = typer.Option(0, min=0, help="Seed of the training: another run, other numbers."),
    keep: bool = typer.Option(False, help="Keep the folder with checkpoints, logs and database."),
    json: bool = typer.Option(False, "--json", help="One JSON object per page, and a summary."),
) -> None:
    """Train a small language model on 4 processes, break it on purpose, and see who is told.

    Exit status: 0 if each mistake was told once and by its name, and nothing else was; 1 if not; 2
    if it cannot be tried.
    """
    _require()
    folder = Path(tempfile.mkdtemp(prefix="sentinel-demo-"))
    with Telling(lines=json) as telling:
        telling.say(f"Everything of this demo is in {folder}.")
        outcome = _play(Stage(folder, seed), telling, keep=keep)
    raise typer.Exit(0 if outcome.passed else 1)


def _require() -> None:
    lacks = lacking()
    if lacks:
        print(f"sentinel demo: {lacks}", file=sys.stderr)
        raise typer.Exit(2)


def _play(stage: Stage, telling: Telling, *, keep: bool) -> Outcome:
    """One demo from start to end. No process is ever left; the folder is, where it failed."""
    began = time.monotonic()
    secret = secrets.token_urlsafe(24)
    with Receiver(secret) as receiver:
        stage.configure(receiver.url, secret)
        telling.say(f"Pages go to a receiver at {receiver.url}, in place of Slack and a pager.")
        try:
            stage.start()
            pages = _watch(stage, receiver, telling, began + LONGEST)
        finally:
            stage.clear()
    _tell_end(stage, telling)
    outcome = judge(pages, stage.causes)
    kept = stage.folder if keep or not outcome.passed else None
    telling.verdict(outcome, pages, time.monotonic() - began, kept)
    if kept is None:
        shutil.rmtree(stage.folder)
    return outcome


def _watch(stage: Stage, receiver: Receiver, telling: Telling, deadline: float) -> list[Delivery]:
    """Show what happens until the training is over and the agent has left; return the pages."""
    pages: list[Delivery] = []
    live = over = False
    while not over and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
        state = stage.look()
        over = not state and stage.status is not None and not stage.watched
        if state and not live:
            live = True
            url = stage.agent["url"]
            telling.say(f"Live now: {url}/metrics for Prometheus, {url}/ for people.")
        pages += _arrived(receiver, telling)
        if state:
            telling.progress(state)
    if not over:
        telling.say(f"[red]Not over after {LONGEST:.0f} s: ended.[/]")
    return pages


def _arrived(receiver: Receiver, telling: Telling) -> list[Delivery]:
    pages: list[Delivery] = []
    while not receiver.arrived.empty():
        item = receiver.arrived.get()
        telling.arrived(item)
        if isinstance(item, Delivery):
            pages.append(item)
    return pages


def _tell_end(stage: Stage, telling: Telling) -> None:
    if stage.status:
        log = (stage.folder / "training.log").read_text(errors="replace")
        telling.say(f"[red]The training failed with status {stage.status}.[/] It said last:")
        telling.say(escape("\n".join(log.splitlines()[-15:])))
    telling.say(f"{stage.written} checkpoints were written, where {stage.meant} were meant.")
