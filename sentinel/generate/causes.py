"""Causes: one page of all there is that incidents may be put down to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.config.plugins import classes, modules
from sentinel.generate.detector_docs import paragraphs
from sentinel.model.diagnosis import MOST, NAMED

_PAGE = f"""\
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
The cause of the highest confidence is named if that is at least {NAMED:g}, and no confidence is
above {MOST:g}. Below, the incidents speak for themselves, each with the advice of its detector.

A confidence orders causes, and says how much speaks for one. It is not a measured frequency.

**Where it is shown.** On pages to Slack and webhooks, on the agent's own page, by `sentinel status`
and `sentinel replay`, in `/api/run` and `/api/incidents`, and as
`sentinel_diagnosis_confidence{{run, cause}}` while the case is open.

**A cause of your own** is one file in `sentinel/causes`, or the entry point of a plug-in in the
group `sentinel.causes`.
"""


@dataclass(frozen=True)
class CauseSheet:
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
    def story(self) -> str:
        """What the docstring says before its paragraphs begin."""
        told = self.docstring.partition("\n")[2]
        return re.split(r"^\w+\n {4}", told, maxsplit=1, flags=re.MULTILINE)[0].strip()

    @property
    def paragraphs(self) -> dict[str, str]:
        """The indented paragraphs of the docstring by their title."""
        return paragraphs(self.docstring)

    @property
    def anchor(self) -> str:
        """Where it is on the page."""
        return re.sub(r"[^\w -]", "", self.heading.lower()).replace(" ", "-")

    @property
    def _headline(self) -> tuple[str, str, str]:
        return self.docstring.partition("\n")[0].partition(": ")


def cause_sheets() -> Iterator[CauseSheet]:
    """One per file of the room; plug-ins bring their own pages."""
    known = classes("causes")
    for name, module in modules("causes").items():
        yield CauseSheet(name, known[name], (module.__doc__ or "").strip())


def causes(sheets: Iterable[CauseSheet]) -> str:
    """The page docs/diagnosis.md."""
    known = list(sheets)
    return "\n".join([_PAGE, *_index(known), *(line for sheet in known for line in _told(sheet))])


def suspects(detector: str, sheets: Iterable[CauseSheet]) -> Iterator[str]:
    """For a runbook: what may stand behind the incidents of that detector, a line each."""
    for sheet in sheets:
        if detector in sheet.cause.explains:
            link = f"[{sheet.heading}](../diagnosis.md#{sheet.anchor})"
            yield f"- {link}: {sheet.meaning[0].lower()}{sheet.meaning[1:]}"


def _index(sheets: Iterable[CauseSheet]) -> Iterator[str]:
    yield from ("| cause | what it is |", "|---|---|")
    yield from (f"| [{sheet.heading}](#{sheet.anchor}) | {sheet.meaning} |" for sheet in sheets)
    yield ""


def _told(sheet: CauseSheet) -> Iterator[str]:
    yield from (f"## {sheet.heading}", "", f"`{sheet.name}`, told as {_loudness(sheet)}.", "")
    yield from (sheet.meaning, "")
    if sheet.story:
        yield from (sheet.story, "")
    for name, text in sheet.paragraphs.items():
        yield from (f"**{name}.** {text}", "")
    links = (f"[{name}](runbooks/{name}.md)" for name in sorted(sheet.cause.explains))
    yield from (f"**Explains.** {', '.join(links)}", "")


def _loudness(sheet: CauseSheet) -> str:
    severity = sheet.cause.severity
    return "loudly as its incidents are" if severity is None else f"`{severity.value}`"
