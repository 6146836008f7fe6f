"""Causes: one page of all there is that incidents may be put down to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.config.plugins import load_classes, load_modules
from sentinel.generate.detector_docs import parse_paragraphs
from sentinel.model.diagnosis import MIN_CONFIDENCE
from sentinel.pipeline.diagnose import MAX_CONFIDENCE

_PAGE_HEADER = f"""\
# Diagnosis

<!-- Written by `make generate` from `sentinel/causes` and `sentinel/generate/causes.py`. -->

Detectors say what is wrong; a cause says why. When incidents of one run may have one cause, people
are told of them [as one case](incidents.md#cases), on one page: the cause, how far it is believed
in, what speaks for it in the order it began, what to do by the names that settings have in your
framework, and the last checkpoint before anything went wrong.

**How a cause is found.** Each cause looks at what was found, at what the run says of its settings,
and at where its signals stand, and gives clues. A clue has a weight w, how far one would believe in
the cause by it alone; clues count as independent, so that together they are worth
1 - (1 - w1)(1 - w2)... (a noisy-or: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988).
The cause of the highest confidence is named if that is at least {MIN_CONFIDENCE:g}, and no confidence is
above {MAX_CONFIDENCE:g}. Below, the incidents speak for themselves, each with the advice of its detector.

A confidence orders causes, and says how much speaks for one. It is not a measured frequency.

**Where it is shown.** On pages to Slack and webhooks, on the agent's own page, by `sentinel status`
and `sentinel replay`, in `/api/run` and `/api/incidents`, and as
`sentinel_diagnosis_confidence{{run, cause}}` while the case is open.

**A cause of your own** is one file in `sentinel/causes`, or the entry point of a plug-in in the
group `sentinel.causes`.
"""


@dataclass(frozen=True)
class CauseDoc:
    """One cause: its file's name, its class and its docstring."""

    name: str
    cause: Any
    docstring: str

    @property
    def heading(self) -> str:
        """Its name in words."""
        return self._headline[0]

    @property
    def meaning(self) -> str:
        """What it is, in one sentence."""
        meaning = self._headline[2].rstrip(".")
        return f"{meaning[0].upper()}{meaning[1:]}." if meaning else ""

    @property
    def description(self) -> str:
        """What the docstring says before its paragraphs begin."""
        told = self.docstring.partition("\n")[2]
        return re.split(r"^\w+\n {4}", told, maxsplit=1, flags=re.MULTILINE)[0].strip()

    @property
    def paragraphs(self) -> dict[str, str]:
        """The indented paragraphs of the docstring by their title."""
        return parse_paragraphs(self.docstring)

    @property
    def anchor(self) -> str:
        """Where it is on the page."""
        return re.sub(r"[^\w -]", "", self.heading.lower()).replace(" ", "-")

    @property
    def _headline(self) -> tuple[str, str, str]:
        return self.docstring.partition("\n")[0].partition(": ")


def cause_docs() -> Iterator[CauseDoc]:
    """One per file of the room; plug-ins bring their own pages."""
    known = load_classes("causes")
    for name, module in load_modules("causes").items():
        yield CauseDoc(name, known[name], (module.__doc__ or "").strip())


def diagnosis_page(docs: Iterable[CauseDoc]) -> str:
    """The page docs/diagnosis.md."""
    known = list(docs)
    return "\n".join(
        [_PAGE_HEADER, *_index(known), *(line for sheet in known for line in _section(sheet))]
    )


def possible_causes(detector: str, docs: Iterable[CauseDoc]) -> Iterator[str]:
    """For a runbook: what may stand behind the incidents of that detector, a line each."""
    for sheet in docs:
        if detector in sheet.cause.explains:
            link = f"[{sheet.heading}](../diagnosis.md#{sheet.anchor})"
            yield f"- {link}: {sheet.meaning[0].lower()}{sheet.meaning[1:]}"


def _index(docs: Iterable[CauseDoc]) -> Iterator[str]:
    yield from ("| cause | what it is |", "|---|---|")
    yield from (f"| [{sheet.heading}](#{sheet.anchor}) | {sheet.meaning} |" for sheet in docs)
    yield ""


def _section(doc: CauseDoc) -> Iterator[str]:
    yield from (f"## {doc.heading}", "", f"`{doc.name}`, told as {_severity_text(doc)}.", "")
    yield from (doc.meaning, "")
    if doc.description:
        yield from (doc.description, "")
    for name, text in doc.paragraphs.items():
        yield from (f"**{name}.** {text}", "")
    links = (f"[{name}](runbooks/{name}.md)" for name in sorted(doc.cause.explains))
    yield from (f"**Explains.** {', '.join(links)}", "")


def _severity_text(doc: CauseDoc) -> str:
    severity = doc.cause.severity
    return "loudly as its incidents are" if severity is None else f"`{severity.value}`"
