"""Runbooks: one page per alert and per cause, with remedy, checks and rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.signals.catalogue import CombineRule
from sentinel.signals.setting_names import SETTING_NAMES
from tools.generate.agent_alerts import AgentAlert
from tools.generate.cause_docs import CauseDoc, cause_page, possible_causes
from tools.generate.detector_docs import DetectorDoc

_NOTE = "<!-- Written by `make generate`; edit {source} instead. -->"


def runbook_pages(
    docs: Iterable[DetectorDoc], agent_alerts: Iterable[AgentAlert], causes: Iterable[CauseDoc]
) -> dict[str, str]:
    """Text of each page by the name of the detector, cause or agent alert."""
    causes = list(causes)
    pages = {doc.name: "\n".join(_detector_page(doc, causes)) for doc in docs}
    pages |= {doc.name: "\n".join(cause_page(doc)) for doc in causes}
    return pages | {alert.name: "\n".join(_agent_alert_page(alert)) for alert in agent_alerts}


def _detector_page(doc: DetectorDoc, causes: Iterable[CauseDoc]) -> Iterator[str]:
    title, _, meaning = doc.headline.partition(": ")
    yield from (f"# {title}", "")
    yield from (_NOTE.format(source=f"`sentinel/detectors/{doc.name}.py`"), "")
    if meaning:
        yield from (f"{meaning[0].upper()}{meaning[1:]}.", "")
    yield from (_alert_line(doc.alert, doc.detector.severity.value), "")
    yield from ("## What to do", "", doc.remedy, "")
    yield from _setting_names(doc.remedy_settings)
    yield from ("## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(_checks(doc), start=1))
    if lines := list(possible_causes(doc.name, causes)):
        yield from ("", "## Possible causes", "", *lines)
    yield from ("", "## Detection rule", "")
    for name, text in doc.paragraphs.items():
        shown = ("```text", text, "```") if name == "Formula" else (text,)
        yield from (f"### {name}", "", *shown, "")
    if doc.settings:
        yield from (f"Settings, under `[detectors.{doc.name}]`:", "")
        yield from ("| setting | default |", "|---|---|")
        yield from (f"| `{name}` | `{default!r}` |" for name, default in doc.settings.items())
        yield ""


def _setting_names(settings: Iterable[str]) -> Iterator[str]:
    """A table of the names of these settings in each framework."""
    rows = [(setting, names) for setting in settings if (names := SETTING_NAMES[setting])]
    if not rows:
        return
    yield from ("| setting | name |", "|---|---|")
    for setting, names in rows:
        listed = ", ".join(f"{framework} `{name}`" for framework, name in names.items())
        yield f"| {setting} | {listed} |"
    yield ""


def _checks(doc: DetectorDoc) -> Iterator[str]:
    yield (
        "Read the values that triggered the alert and the step at which the problem began: they "
        "are in the notification, on the agent's web page and in `sentinel status`."
    )
    signal = doc.signal
    if signal is not None:
        yield f"Plot `{signal.metric}` from well before that step: is it a jump or a slow drift?"
        if signal.combine_rule is not CombineRule.SAME:
            lowest, highest, worst = signal.rank_metrics
            yield (
                f"Is it one rank or all? `{worst}` is the rank with the worst value. If `{lowest}` "
                f"and `{highest}` are far apart, some ranks differ from the others."
            )
    yield "Which other alerts fire at the same time? The earliest is usually closest to the cause."
    yield "Which checkpoint is the last one written before the problem began? Resume from it."


def _agent_alert_page(alert: AgentAlert) -> Iterator[str]:
    title = alert.name.replace("_", " ").capitalize()
    yield from (f"# {title}", "", _NOTE.format(source="`tools/generate/agent_alerts.py`"), "")
    yield from (_alert_line(alert.alert, alert.severity), "")
    yield from ("## What to do", "", alert.remedy, "", "## What to check", "")
    yield from (f"{number}. {check}" for number, check in enumerate(alert.checks, start=1))
    yield from ("", "## Detection rule", "", "```promql", alert.expr, "```", "")


def _alert_line(alert: str, severity: str) -> str:
    return f"Alert `{alert}`, default severity `{severity}`."
