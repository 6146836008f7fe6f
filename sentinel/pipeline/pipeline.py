"""Fold: all that lies between the records of ranks and verdicts on the run, with its memory.

It is a pure fold over its input, so the same records give the same verdicts, live, replayed, or
fed again by an agent that took over from one that was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sentinel import __version__
from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.text_samples import Samples
from sentinel.model.counters import Tally
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector
from sentinel.model.incident import Incident, IncidentBook, Key, Page, State
from sentinel.model.record_batch import Entry, ranks_of
from sentinel.pipeline.cases import CaseBook, RunCases
from sentinel.pipeline.engine import Engine, Verdict
from sentinel.pipeline.snapshot import SnapshotError, freeze, thaw

log = logging.getLogger(__name__)

SET_ASIDE: tuple[type[Exception], ...] = (Exception,)
"""What a record may raise that is then left unjudged; tests, which want to know, make it empty."""


@dataclass
class Memory:
    """All that the next agent goes on from; `stamp` is of the version and settings that made it."""

    stamp: str
    aligner: Aligner
    samples: Samples
    book: IncidentBook
    cases: dict[str, RunCases]
    detectors: dict[Key, Detector]
    errors: dict[str, int]


class Fold:
    """Aligner and engine as one: `feed` takes a record in and yields what it leads to."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Detector]],
        tally: Tally,
        causes: Mapping[str, Cause] | None = None,
    ) -> None:
        self.tally = tally
        self.aligner = Aligner(tally)
        self.samples = Samples()
        self.engine = Engine(makers, cases=CaseBook(causes or {}))

    def feed(self, entry: Entry) -> Iterator[Verdict]:
        """A record's own verdict, then one for each combined record that it completes.

        One that cannot be judged is counted and left: the next agent would fall over it again, and
        the one after that, and nobody would watch.
        """
        try:
            for moment in self.aligner.feed(entry):
                for told in self.samples.feed(moment):
                    yield self.engine.feed(told)
        except SET_ASIDE:
            log.exception("What ranks %s say cannot be judged: it is left aside", ranks_of(entry))
            self.tally.add("sentinel_dropped_records_total", "unjudged", len(ranks_of(entry)))

    def firing(self) -> list[Incident]:
        """Incidents that a page exists for and that are not over."""
        return [i for i in self.engine.book.open.values() if i.state is State.FIRING]

    def standing(self) -> Iterator[Page]:
        """What people would be told of each case that fires, if they were told now."""
        return self.engine.cases.standing()

    def freeze(self) -> str | None:
        """The memory as text; None if a plug-in keeps something that cannot be stored."""
        kept = Memory(
            self._stamp(),
            # What was counted is the agent's to keep, not a step's.
            replace(self.aligner, tally=Tally()),
            self.samples,
            self.engine.book,
            self.engine.cases.runs,
            self.engine.detectors,
            self.engine.errors,
        )
        try:
            return freeze(kept)
        except SnapshotError:
            log.exception("The detectors' state cannot be stored")
            return None

    def restore(self, text: str) -> bool:
        """Take over what `freeze` gave, if it is of this version and these detector settings.

        Whether it was taken over; if not, detectors begin anew.
        """
        modules = {type(make()).__module__ for make in self.engine.makers.values()}
        try:
            kept = thaw(text, modules)
        except SnapshotError:
            log.exception("The stored state cannot be read; detectors begin anew")
            return False
        if not isinstance(kept, Memory) or kept.stamp != self._stamp():
            log.warning("Version or detector settings changed; detectors begin anew")
            return False
        self.aligner, self.samples = kept.aligner, kept.samples
        self.aligner.tally = self.tally
        self.engine.book, self.engine.cases.runs = kept.book, kept.cases
        self.engine.detectors, self.engine.errors = kept.detectors, kept.errors
        return True

    def _stamp(self) -> str:
        return f"{__version__} {[repr(make()) for make in self.engine.makers.values()]}"
