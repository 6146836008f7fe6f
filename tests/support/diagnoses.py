"""What the whole house concludes of a run: every detector and every cause, at their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.diagnosis import CaseContext, Symptom
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.engine import Engine

RUN = "run"

Facts = Mapping[str, float | str]


def scene(
    facts: Facts | None = None, values: Mapping[str, float] | None = None, **onsets: int
) -> CaseContext:
    """A scene of warnings by detector, each begun at that step: `scene(loss_spike=10)`."""
    signs = {
        name: Symptom(name, Severity.WARNING, onset, onset + 5, f"{name} is off.")
        for name, onset in onsets.items()
    }
    return CaseContext(signs, facts or {}, values or {})


def falling(seed: int, count: int) -> np.ndarray:
    """A loss that falls as losses do, with a little noise: whoever looks at it finds nothing."""
    noise = np.random.default_rng(seed).lognormal(0, 0.03, count)
    return 3.0 * (1 + np.arange(count) / 50) ** -0.4 * noise


@dataclass
class Concluded:
    """`pages` are those that alarm people; `cases` the last that is known of each, by its lead."""

    pages: list[Notification] = field(default_factory=list)
    cases: dict[str, Notification] = field(default_factory=dict)

    @property
    def causes(self) -> list[str]:
        """What each case was put down to, in the order they opened; "" where to nothing."""
        found = [page.diagnosis for page in self.cases.values()]
        return ["" if each is None else each.cause for each in found]


def concluded(
    records: Iterable[Record], facts: Mapping[str, float | str] | None = None
) -> Concluded:
    """Show a run to everything; `facts` are its settings, numbers and words, told at its start."""
    engine = Engine(load_classes("detectors"), case_book=CaseBook(build_causes()))
    story = Concluded()
    for record in (*_told(facts or {}), *records):
        for page in engine.process(record).case_notifications:
            story.cases[page.incident.name] = page
            if page.reason not in (NotificationReason.UPDATED, NotificationReason.CAUSE_FOUND):
                story.pages.append(page)
    assert not engine.error_counts
    return story


def _told(facts: Mapping[str, float | str]) -> Iterable[Record]:
    numbers = {name: fact for name, fact in facts.items() if not isinstance(fact, str)}
    words = {name: fact for name, fact in facts.items() if isinstance(fact, str)}
    if facts:
        yield Record(RUN, WHOLE_RUN, 0, 0.0, Event.METADATA, numbers, words)
