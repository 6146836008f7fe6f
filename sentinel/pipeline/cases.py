"""Cases: incidents that one cause may account for, told to people as one.

A case opens with the first incident that is worth telling, its lead, and is known by that one's
name. What joins it within `JOINS_WITHIN` points of the last costs no page if the cause that is
named explains it, or if it is more of the same, unless it makes the case louder. Where people heard
of a case before its cause had a name, they are told the name, once. The case is over when the last
of its incidents is. What ends a run is never folded: a run that died is always told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sentinel.model.diagnosis import RESUMED, Cause, Diagnosis, Scene, Sign, diagnose
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Page, Reason, State
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.catalogue import SIGNALS

JOINS_WITHIN = 200
"""Steps told of. The study saw a policy fall apart within 80 points of its first sign, and 150 to
200 fold its runs into one case each."""

ENDINGS = frozenset({"run_died", "run_failed", "run_stalled"})
"""Detectors whose incidents are never folded."""

MOST_OVER = 16
"""Incidents of a case at their end that it remembers, the newest, beside its lead."""

MOST_NAMES = 1024
"""Settings, and values, of a run that are remembered; of values the catalogue's come first."""

_SETTINGS = (Event.START, Event.FACTS)
_TOLD = (Event.STEP, Event.EVAL, Event.SAMPLE, Event.TICK)


@dataclass(slots=True)
class Case:
    """`incidents` by name, each as it is now, the lead first; of them `over` are at their end.

    `latest` counts the run's steps up to the last incident that joined. `told` is how loud people
    heard of it, `named` whether by the name of a cause, and `heard` by which detectors.
    """

    incidents: dict[str, Incident]
    latest: int
    told: Severity
    over: set[str] = field(default_factory=set)
    diagnosis: Diagnosis | None = None
    named: bool = False
    heard: set[str] = field(default_factory=set)

    def page(self, reason: Reason, step: int, time: float) -> Page:
        """What people are told of the case, at that step and time."""
        lead, *others = (replace(incident) for incident in self.incidents.values())
        lead.severity = self.told
        if reason is Reason.RESOLVED:
            last = max(self.incidents.values(), key=lambda each: each.resolved_time or 0.0)
            lead.state = State.RESOLVED
            lead.resolved_step, lead.resolved_time = last.resolved_step, last.resolved_time
            step = step if last.resolved_step is None else last.resolved_step
        return Page(reason, lead, step, time, diagnosis=self.diagnosis, others=tuple(others))

    def join(self, incident: Incident, at: int) -> None:
        """Take one more incident in, and let go of those that were over long ago."""
        self.incidents[incident.name], self.latest = incident, at
        old = [name for name in list(self.incidents)[1:] if name in self.over][:-MOST_OVER]
        for name in old:
            del self.incidents[name]
            self.over.remove(name)

    def grow_louder(self) -> bool:
        """Take the loudest of its incidents and its cause for its own; whether that is news."""
        heard = [self.told, *(incident.severity for incident in self.incidents.values())]
        if self.diagnosis is not None and self.diagnosis.severity is not None:
            heard.append(self.diagnosis.severity)
        before, self.told = self.told, min(heard, key=lambda severity: severity.order)
        return self.told is not before


@dataclass(slots=True)
class RunCases:
    """The cases of one run, and what a cause may want to know of it.

    `restarted` is whether the run began again and has not stepped since. `noted` are incidents that
    nobody was told of and that may yet be evidence, by name, each with the count of steps at which
    it last moved.
    """

    steps: int = 0
    restarted: bool = False
    facts: dict[str, str | float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    noted: dict[str, tuple[int, Incident]] = field(default_factory=dict)
    open: list[Case] = field(default_factory=list)

    def hear(self, record: Record) -> None:
        """Take over what a record says of the run."""
        if record.event in _SETTINGS:
            self.facts.update(record.values)
            self.facts.update(record.facts)
            self.facts = dict(list(self.facts.items())[:MOST_NAMES])
        elif record.event in _TOLD:
            self.values.update(record.values)
            if len(self.values) > MOST_NAMES:
                self.values = {n: x for n, x in self.values.items() if n in SIGNALS}
        if record.event is Event.START:
            self.restarted = record.attempt > 0 or self.steps > 0
        elif record.event is Event.STEP and self.restarted:
            self.restarted, self.facts[RESUMED] = False, record.step
        self.steps += record.event is Event.STEP

    def note(self, incident: Incident) -> None:
        """Keep a quiet incident for evidence."""
        self.noted[incident.name] = self.steps, incident
        self.forget()

    def forget(self) -> None:
        """Let go of what was over long ago."""
        self.noted = {
            name: (at, known)
            for name, (at, known) in self.noted.items()
            if known.state is State.FIRING or self.near(at)
        }

    def near(self, at: int) -> bool:
        """Whether the run has gone on only so little since then that both may belong together."""
        return self.steps - at <= JOINS_WITHIN

    def scene(self, case: Case) -> Scene:
        """What there is to explain, and to explain it by."""
        self.forget()
        signs: dict[str, Sign] = {}
        beside = (incident for _, incident in self.noted.values())
        for incident in (*case.incidents.values(), *beside):
            sign = _sign(incident)
            known = signs.get(sign.detector)
            signs[sign.detector] = sign if known is None else _merged(known, sign)
        return Scene(signs, self.facts, self.values)


@dataclass
class CaseBook:
    """Folds the pages of incidents into those of cases, by the `causes` that may explain them."""

    causes: Mapping[str, Cause] = field(default_factory=dict)
    runs: dict[str, RunCases] = field(default_factory=dict)

    def fold(self, record: Record, news: Sequence[Page | Incident]) -> tuple[Page, ...]:
        """What people are to be told, of what became of incidents at this record of the run."""
        run = self.runs.get(record.run)
        if run is None:
            run = self.runs[record.run] = RunCases()
        run.hear(record)
        if not news:
            return ()
        joined: list[Case | None] = []
        for new in news:
            over = isinstance(new, Page) and new.reason is Reason.RESOLVED
            incident = new.incident if isinstance(new, Page) else new
            joined.append(self._place(run, incident, over=over))
        turns = [
            (case, self._turn(run, case, joined=any(case is each for each in joined)))
            for case in run.open
        ]
        run.open = [case for case, reason in turns if reason is not Reason.RESOLVED]
        told = ((case, reason) for case, reason in turns if reason is not None)
        return tuple(case.page(reason, record.step, record.time) for case, reason in told)

    def standing(self) -> Iterator[Page]:
        """What people would be told of each open case, if they were told now."""
        for run in self.runs.values():
            for case in run.open:
                lead = next(iter(case.incidents.values()))
                yield case.page(Reason.OPENED, lead.opened_step, lead.opened_time)

    def _place(self, run: RunCases, incident: Incident, *, over: bool) -> Case | None:
        """Put an incident that moved where it belongs; the case that it joined, if it did."""
        name = incident.name
        case = next((case for case in run.open if name in case.incidents), None)
        if case is not None:
            case.incidents[name] = incident
            case.over |= {name} if over else set()
            return None
        if over or incident.severity is Severity.INFO:
            run.note(incident)
            return None
        run.noted.pop(name, None)
        case = self._home(run, incident)
        if case is None:
            run.open.append(Case({name: incident}, run.steps, incident.severity))
        else:
            case.join(incident, run.steps)
        return case

    def _home(self, run: RunCases, incident: Incident) -> Case | None:
        """The newest open case to which this incident belongs."""
        close = (case for case in reversed(run.open) if run.near(case.latest))
        akin = (
            case
            for case in close
            if any(self._belong(incident, other) for other in case.incidents.values())
        )
        return next(akin, None)

    def _belong(self, one: Incident, other: Incident) -> bool:
        """Whether one cause may explain both."""
        both = {one.key.detector, other.key.detector}
        if not both.isdisjoint(ENDINGS):
            return False
        return len(both) == 1 or any(both <= cause.explains for cause in self.causes.values())

    def _turn(self, run: RunCases, case: Case, *, joined: bool) -> Reason | None:
        """Diagnose a case anew, and say why people are to be told of it, if they are."""
        if case.over.issuperset(case.incidents):
            return Reason.RESOLVED
        before = case.diagnosis
        known = {incident.key.detector for incident in case.incidents.values()}
        # What is noted beside a case is evidence for what may be behind it, and for nothing else.
        behind = {name: each for name, each in self.causes.items() if known & each.explains}
        case.diagnosis = diagnose(run.scene(case), behind) or before
        said = self._said(case)
        if said is not None:
            case.heard |= known
            case.named = case.diagnosis is not None
            return said
        return Reason.UPDATED if joined or case.diagnosis != before else None

    def _said(self, case: Case) -> Reason | None:
        """Why people are to be told of a case as it is now; None where they know enough of it."""
        louder = case.grow_louder()
        if not case.heard:
            return Reason.OPENED
        if louder:
            return Reason.WORSENED
        cause = None if case.diagnosis is None else self.causes.get(case.diagnosis.cause)
        explained = case.heard | (cause.explains if cause is not None else set())
        for name, incident in reversed(case.incidents.items()):
            if incident.key.detector not in explained:
                # The newest stands last: it is what the page speaks of.
                case.incidents[name] = case.incidents.pop(name)
                return Reason.JOINED
        return Reason.NAMED if cause is not None and not case.named else None


def _merged(one: Sign, other: Sign) -> Sign:
    """Two incidents of one detector: the one that began first, and how often in all."""
    first = other if other.onset_step < one.onset_step else one
    return replace(first, times=one.times + other.times)


def _sign(incident: Incident) -> Sign:
    finding = incident.finding
    rank = incident.key.rank if incident.key.rank != WHOLE_RUN else finding.rank
    return Sign(
        incident.key.detector,
        incident.severity,
        incident.onset_step,
        incident.opened_step,
        finding.summary,
        finding.evidence,
        incident.last_good_step,
        rank,
        incident.flaps + 1,
    )
