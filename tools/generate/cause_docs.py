"""Cause documentation: reads the docstrings of causes and writes docs/diagnosis.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.config.plugins import load_classes, load_modules
from sentinel.model.diagnosis import (
    MAX_POSSIBLE_CAUSES,
    MIN_CONFIDENCE,
    CaseContext,
    sign_of,
)
from sentinel.pipeline.cases import REASSESS_AFTER_STEPS
from sentinel.pipeline.diagnose import MAX_CONFIDENCE
from tools.generate.detector_docs import parse_paragraphs

_PAGE_HEADER = f"""\
# Diagnosis

<!-- Written by `make generate` from `sentinel/causes` and `tools/generate/cause_docs.py`. -->

A detector reports what is wrong; a cause explains why. If incidents of one run may have one cause,
they are sent [as one case](incidents.md#cases), in one notification: the cause, its confidence, the
evidence in the order in which it began, the remedy with the setting names of your framework, and
the last checkpoint before the first incident.

**How a cause is chosen.** Each cause receives the incidents of the case and of others of the run,
the run's settings and the newest values of its signals, and returns pieces of evidence. It
compares onsets as intervals of steps. A piece of evidence has a weight w: the confidence in the
cause if nothing else were known. Evidence counts as independent, so several pieces combine to 1 -
(1 - w1)(1 - w2)... (a noisy-or: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988).
No confidence exceeds {MAX_CONFIDENCE:g}. The cause with the highest confidence is named if that
is at least {MIN_CONFIDENCE:g}.

**What excludes a cause.** Before a cause is named, sentinel looks for observations that contradict
it, in the whole case and in all values of the training: a gradient norm that is 0 in some of the
records is not that of frozen parameters, and a reward that has not risen is not hacked. A cause
with such an observation has no confidence. It is looked for again up to
{REASSESS_AFTER_STEPS[-1]} logged steps after the last incident, and when the case ends: a cause
that is contradicted then is withdrawn. So is a cause whose evidence is not sufficient once
another incident has joined.

**Without a cause.** Below that confidence, the notification has the incidents, the remedy of the
detector, and up to {MAX_POSSIBLE_CAUSES} possible causes, each with its confidence and the
observation that would confirm it, or the key to log. Some incidents suggest a cause without other
evidence, with less than the confidence of a named one. In JSON these are `possible_causes`, with
`cause`, `title`, `confidence` and `sign`.

**What a confidence means.** It ranks the causes and shows how much evidence supports one. On 342
[labelled logs](detection.md#causes-on-labelled-logs), named causes were right more often than
their confidence states.

**Where it is shown.** In notifications to Slack and webhooks, on the agent's web page, in
`sentinel status` and `sentinel replay`, in `/api/run` and `/api/incidents`, in the alert
[`SentinelCase`](incidents.md#in-prometheus), and as `sentinel_case_confidence{{run, case}}` while
the case is open.

**Your own causes.** A cause is one file in `sentinel/causes`, or an entry point of a plug-in in the
group `sentinel.causes`. Optional parts are `sign` (what confirms it), `excluded_by` (detectors) and
`contradictions(context)` (sentences) for what excludes it, and `suggested_by`, the confidence that
an incident of a detector gives to it as a possible cause.
"""


@dataclass(frozen=True)
class CauseDoc:
    """A cause: the name of its file, its class and its module docstring."""

    name: str
    cause: Any
    docstring: str

    @property
    def heading(self) -> str:
        """The name in words: the first line of the docstring up to the colon."""
        return self._headline[0]

    @property
    def meaning(self) -> str:
        """The first line of the docstring after the colon, as a sentence."""
        meaning = self._headline[2].rstrip(".")
        return f"{meaning[0].upper()}{meaning[1:]}." if meaning else ""

    @property
    def description(self) -> str:
        """The text between the first line and the indented paragraphs."""
        rest = self.docstring.partition("\n")[2]
        return re.split(r"^\w+\n {4}", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()

    @property
    def paragraphs(self) -> dict[str, str]:
        """The indented paragraphs of the docstring by their title."""
        return parse_paragraphs(self.docstring)

    @property
    def anchor(self) -> str:
        """The anchor of its section on the page."""
        return re.sub(r"[^\w -]", "", self.heading.lower()).replace(" ", "-")

    @property
    def _headline(self) -> tuple[str, str, str]:
        return self.docstring.partition("\n")[0].partition(": ")


def cause_docs() -> Iterator[CauseDoc]:
    """One CauseDoc per module of `sentinel.causes`; plug-ins document themselves."""
    classes = load_classes("causes")
    for name, module in load_modules("causes").items():
        yield CauseDoc(name, classes[name], (module.__doc__ or "").strip())


def diagnosis_page(docs: Iterable[CauseDoc]) -> str:
    """Text of docs/diagnosis.md."""
    docs = list(docs)
    sections = (line for doc in docs for line in _section(doc))
    return "\n".join([_PAGE_HEADER, *_index(docs), *sections])


def possible_causes(detector: str, docs: Iterable[CauseDoc]) -> Iterator[str]:
    """For a runbook: one line for each cause that explains incidents of the detector."""
    for doc in docs:
        if detector in doc.cause.explains:
            link = f"[{doc.heading}]({doc.name}.md)"
            yield f"- {link}: {doc.meaning[0].lower()}{doc.meaning[1:]}"


def cause_page(doc: CauseDoc) -> Iterator[str]:
    """Lines of the runbook of a cause."""
    yield from (f"# {doc.heading}", "")
    yield from (
        f"<!-- Written by `make generate`; edit `sentinel/causes/{doc.name}.py` instead. -->",
        "",
    )
    yield from (doc.meaning, "")
    yield from (f"Cause `{doc.name}`. Severity: {_severity_text(doc)}.", "")
    if doc.description:
        yield from (doc.description, "")
    remedy = doc.cause().remedy(CaseContext())
    yield from ("## What to do", "", remedy, "")
    yield from ("## What to check", "")
    yield from (
        "1. Read the evidence in the notification, which is in the order in which it began.",
        "2. Does the last good checkpoint exist? Resume from it, not from a later one.",
        "",
    )
    for name, text in doc.paragraphs.items():
        yield from (f"## {name}", "", text, "")
    yield from ("## What confirms it", "", f"It is this cause if {sign_of(doc.cause)}.", "")
    yield from ("## Incidents that it explains", "")
    yield from (f"- [`{name}`]({name}.md)" for name in sorted(doc.cause.explains))
    yield ""


def _index(docs: Iterable[CauseDoc]) -> Iterator[str]:
    yield from ("| cause | meaning |", "|---|---|")
    yield from (f"| [{doc.heading}](#{doc.anchor}) | {doc.meaning} |" for doc in docs)
    yield ""


def _section(doc: CauseDoc) -> Iterator[str]:
    yield from (f"## {doc.heading}", "", f"`{doc.name}`. Severity: {_severity_text(doc)}.", "")
    yield from (doc.meaning, "")
    if doc.description:
        yield from (doc.description, "")
    for name, text in doc.paragraphs.items():
        yield from (f"**{name}.** {text}", "")
    yield from (f"**Confirmed.** It is this cause if {sign_of(doc.cause)}.", "")
    links = (f"[{name}](runbooks/{name}.md)" for name in sorted(doc.cause.explains))
    yield from (f"**Explains.** {', '.join(links)}", "")


def _severity_text(doc: CauseDoc) -> str:
    severity = doc.cause.severity
    return "the highest of its incidents" if severity is None else f"`{severity.value}`"
