"""Story: what a log tells of a run, as the agent would have told it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Onset, Page, Reason
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline.engine import Engine
from sentinel.pipeline.onset import Past


@dataclass
class Told:
    """One incident in its last state, with the last page that told of its trouble.

    `onset` is when it was found to have begun, looking back from where it opened. `case` is the
    name of the case that people were told of it by; None of what nobody was told of.
    """

    incident: Incident
    page: Page
    onset: Onset | None = None
    case: str | None = None


PAGE = 1024
"""Steps that share one number, a bit for each."""


@dataclass
class Steps:
    """Counts different steps, of a log of any length: ten million in a row take 3 MB.

    >>> steps = Steps()
    >>> for step in (5, 3, 5, -2, 10**9):
    ...     steps.add(step)
    >>> steps.count
    4
    """

    pages: dict[int, int] = field(default_factory=dict)

    def add(self, step: int) -> None:
        """Take a step, in any order and however often."""
        page, at = divmod(step, PAGE)
        self.pages[page] = self.pages.get(page, 0) | 1 << at

    @property
    def count(self) -> int:
        """How many different ones there were."""
        return sum(page.bit_count() for page in self.pages.values())


@dataclass
class Story:
    """What a replay found, and how much it read. `cases` are the last that was known of each.

    `remark` is what a person should know of how the log was read; mostly nothing.
    """

    told: list[Told] = field(default_factory=list)
    cases: list[Page] = field(default_factory=list)
    records: int = 0
    skipped: int = 0
    remark: str = ""
    steps: int = 0
    failed: list[str] = field(default_factory=list)
    """Detectors that failed while judging: what they would have found is not known."""

    @property
    def worst(self) -> int:
        """Order of the loudest severity; more than any where nothing was found."""
        alone = [told.incident.severity.order for told in self.told]
        together = [case.incident.severity.order for case in self.cases]
        return min(alone + together, default=len(Severity))

    @property
    def diagnosed(self) -> Iterator[Page]:
        """Cases whose cause has a name."""
        return (case for case in self.cases if case.diagnosis is not None)

    def of(self, case: Page) -> list[Incident]:
        """The incidents of a case in their last state."""
        return [told.incident for told in self.told if told.case == case.incident.name]

    def over(self, case: Page) -> int | None:
        """The step at which the last incident of the case was over; None while one is not."""
        ends = [incident.resolved_step for incident in self.of(case)]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None


def tell(source: Iterable[Record], engine: Engine) -> Story:
    """Run the records through the engine; every incident once, in the order they opened."""
    story, steps = Story(), Steps()
    told: dict[str, Told] = {}
    cases: dict[str, Page] = {}
    past = Past({make().signal for make in engine.makers.values()})
    for record in source:
        story.records += 1
        steps.add(record.step)
        if record.rank == WHOLE_RUN:
            past.hear(record)
        verdict = engine.feed(record)
        for page in verdict.pages:
            _fold(told, page, past)
        cases |= {page.incident.name: page for page in verdict.told}
    for incident in engine.book.open.values():
        if incident.name in told:
            told[incident.name].incident = incident
    for name, case in cases.items():
        for incident in (case.incident, *case.others):
            told[incident.name].case = name
    story.told, story.cases, story.steps = list(told.values()), list(cases.values()), steps.count
    story.skipped = getattr(source, "skipped", 0)
    story.remark = getattr(source, "remark", "")
    story.failed = sorted(engine.errors)
    return story


def _fold(told: dict[str, Told], page: Page, past: Past) -> None:
    name = page.incident.name
    if page.reason is Reason.RESOLVED and name in told:
        told[name].incident = page.incident
        return
    onset = told[name].onset if name in told else None
    if onset is None and page.incident.severity is not Severity.INFO:
        onset = past.date(page.incident)
    told[name] = Told(page.incident, page, onset)
