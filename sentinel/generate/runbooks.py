"""Runbooks: one page per alert, for whoever is woken by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.generate.agent_alerts import Watch
from sentinel.generate.causes import CauseSheet, suspects
from sentinel.generate.detector_docs import DataSheet
from sentinel.signals.catalogue import Combine

_NOTE = "<!-- Written by `make generate`; edit {source} instead. -->"


def runbooks(
    sheets: Iterable[DataSheet], watches: Iterable[Watch], causes: Iterable[CauseSheet]
) -> dict[str, str]:
    """Text of each page by the name of its alert's detector or watch."""
    known = list(causes)
    pages = {sheet.name: "\n".join(_of_detector(sheet, known)) for sheet in sheets}
    return pages | {watch.name: "\n".join(_of_watch(watch)) for watch in watches}


def _of_detector(sheet: DataSheet, causes: Iterable[CauseSheet]) -> Iterator[str]:
    title, _, meaning = sheet.headline.partition(": ")
    yield from (f"# {title}", "")
    yield from (_NOTE.format(source=f"`sentinel/detectors/{sheet.name}.py`"), "")
    if meaning:
        yield from (f"{meaning[0].upper()}{meaning[1:]}.", "")
    yield from (_heading(sheet.alert, sheet.detector.severity.value), "")
    yield from ("## What to do", "", sheet.remedy, "")
    yield from ("## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(_checks(sheet), start=1))
    if found := list(suspects(sheet.name, causes)):
        yield from ("", "## What may be behind it", "", *found)
    yield from ("", "## How it decides", "")
    for name, text in sheet.paragraphs.items():
        shown = ("```text", text, "```") if name == "Formula" else (text,)
        yield from (f"### {name}", "", *shown, "")
    if sheet.knobs:
        yield from (f"Settings, under `[detectors.{sheet.name}]`:", "")
        yield from ("| setting | default |", "|---|---|")
        yield from (f"| `{knob}` | `{default!r}` |" for knob, default in sheet.knobs.items())
        yield ""


def _checks(sheet: DataSheet) -> Iterator[str]:
    yield (
        "The page that woke you has the numbers that decided and the step where it began; the "
        "agent's own page and `sentinel status` show them too."
    )
    signal = sheet.signal
    if signal is not None:
        yield f"Look at `{signal.metric}` from well before that step: a jump or a slow drift?"
        if signal.combine is not Combine.SAME:
            lowest, highest, worst = signal.rank_metrics
            yield (
                f"Is it one rank or all? `{worst}` names the worst; far apart, `{lowest}` and "
                f"`{highest}` mean that some ranks differ from the others."
            )
    yield "Which other alerts fire at the same time? The earliest is the nearest to the cause."
    yield "Which was the last checkpoint written before it began? That is the one to go back to."


def _of_watch(watch: Watch) -> Iterator[str]:
    title = watch.name.replace("_", " ").capitalize()
    yield from (f"# {title}", "", _NOTE.format(source="`sentinel/generate/agent_alerts.py`"), "")
    yield from (_heading(watch.alert, watch.severity), "")
    yield from ("## What to do", "", watch.remedy, "", "## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(watch.checks, start=1))
    yield from ("", "## How it decides", "", "```promql", watch.expr, "```", "")


def _heading(alert: str, severity: str) -> str:
    return f"Alert `{alert}`, usual severity `{severity}`."
