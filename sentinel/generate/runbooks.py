"""Runbooks: one page per alert, for whoever is woken by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.generate.agent_alerts import AgentAlert
from sentinel.generate.causes import CauseDoc, possible_causes
from sentinel.generate.detector_docs import DetectorDoc
from sentinel.signals.catalogue import CombineRule

_NOTE = "<!-- Written by `make generate`; edit {source} instead. -->"


def runbook_pages(
    docs: Iterable[DetectorDoc], agent_alerts: Iterable[AgentAlert], causes: Iterable[CauseDoc]
) -> dict[str, str]:
    """Text of each page by the name of its alert's detector or watch."""
    known = list(causes)
    pages = {sheet.name: "\n".join(_detector_page(sheet, known)) for sheet in docs}
    return pages | {watch.name: "\n".join(_agent_alert_page(watch)) for watch in agent_alerts}


def _detector_page(doc: DetectorDoc, causes: Iterable[CauseDoc]) -> Iterator[str]:
    title, _, meaning = doc.headline.partition(": ")
    yield from (f"# {title}", "")
    yield from (_NOTE.format(source=f"`sentinel/detectors/{doc.name}.py`"), "")
    if meaning:
        yield from (f"{meaning[0].upper()}{meaning[1:]}.", "")
    yield from (_alert_line(doc.alert, doc.detector.severity.value), "")
    yield from ("## What to do", "", doc.remedy, "")
    yield from ("## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(_checks(doc), start=1))
    if found := list(possible_causes(doc.name, causes)):
        yield from ("", "## What may be behind it", "", *found)
    yield from ("", "## How it decides", "")
    for name, text in doc.paragraphs.items():
        shown = ("```text", text, "```") if name == "Formula" else (text,)
        yield from (f"### {name}", "", *shown, "")
    if doc.settings:
        yield from (f"Settings, under `[detectors.{doc.name}]`:", "")
        yield from ("| setting | default |", "|---|---|")
        yield from (f"| `{knob}` | `{default!r}` |" for knob, default in doc.settings.items())
        yield ""


def _checks(doc: DetectorDoc) -> Iterator[str]:
    yield (
        "The page that woke you has the numbers that decided and the step where it began; the "
        "agent's own page and `sentinel status` show them too."
    )
    signal = doc.signal
    if signal is not None:
        yield f"Look at `{signal.metric}` from well before that step: a jump or a slow drift?"
        if signal.combine_rule is not CombineRule.SAME:
            lowest, highest, worst = signal.rank_metrics
            yield (
                f"Is it one rank or all? `{worst}` names the worst; far apart, `{lowest}` and "
                f"`{highest}` mean that some ranks differ from the others."
            )
    yield "Which other alerts fire at the same time? The earliest is the nearest to the cause."
    yield "Which was the last checkpoint written before it began? That is the one to go back to."


def _agent_alert_page(alert: AgentAlert) -> Iterator[str]:
    title = alert.name.replace("_", " ").capitalize()
    yield from (f"# {title}", "", _NOTE.format(source="`sentinel/generate/agent_alerts.py`"), "")
    yield from (_alert_line(alert.alert, alert.severity), "")
    yield from ("## What to do", "", alert.remedy, "", "## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(alert.checks, start=1))
    yield from ("", "## How it decides", "", "```promql", alert.expr, "```", "")


def _alert_line(alert: str, severity: str) -> str:
    return f"Alert `{alert}`, usual severity `{severity}`."
