"""Standing: where a run stands now, folded from its records and pages.

Whatever is shown of the present (metrics, page, status) is read from here; the past is in the
history. It grows with the number of ranks and of logged keys, both of which are capped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import TypeVar

from sentinel.metrics.label import label
from sentinel.metrics.rank_selection import Ranks, RankStanding
from sentinel.model.incident import Incident, Page, Reason, State
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.model.record_batch import Sheet
from sentinel.signals.catalogue import SIGNALS, WEIGHT
from sentinel.signals.kl import SIGNALS_OF_KL, KlKind, fact_of
from sentinel.store.silences import Quiet

Key = TypeVar("Key")
Value = TypeVar("Value")

STATES = ("starting", "running", "stalled", "finished", "failed", "died")
ACTIVE = frozenset({"starting", "running", "stalled"})

# Whoever interrupts a run wanted it to end: nobody needs to be woken.
_STATE_AFTER = {
    "finished": "finished",
    "interrupted": "finished",
    "exception": "failed",
    "exit": "failed",
    "died": "died",
}
_MEASURED = frozenset({Event.STEP, Event.EVAL, Event.SAVE})

LIVENESS = ("ranks_running", "ranks_gone", "ranks_failed", "idle_seconds")
"""What a TICK counts of all ranks, however many there are."""

STALL = "run_stalled"
"""The detector that says whether a run whose processes live still gets anywhere."""

MOST_KEYS = 100
"""Logged keys outside the catalogue that are shown; the first ones seen."""

MOST_FACTS = 200
"""Texts, and as many numbers, that a run may say of itself; the first ones seen."""

LONGEST_FACT = 1000
"""Characters kept of one text that a run says of itself."""

MOST_TAPS = 10_000
"""Taps that are followed, each rank's counted; the first ones seen."""

TAP_STATES = ("on", "partial", "off")
"""A tap is whole; on, but without a part that this version of its framework lacks; or off."""

TAP = "tap/"
"""What begins the name of a fact that tells how an integration's tap is."""


def worst_rank(spread: Spread) -> int:
    """The first rank whose value is not finite, else the rank with the highest."""
    return spread.bad_ranks[0] if spread.bad_ranks else spread.max_rank


@dataclass(slots=True)
class Standing:
    """Where one run stands. `most_ranks` ranks, and a few that stand out, are shown one by one."""

    run: str
    most_ranks: int = 64
    attempt: int = -1
    last_state: str = "starting"
    step: int | None = None
    steps: int = 0
    saves: int = 0
    last_step: float = nan
    last_save: float = nan
    about: dict[str, str] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    taps: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the tap of that integration, in that rank, last said of itself."""
    signals: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    kl_kinds: dict[str, KlKind] = field(default_factory=dict)
    """Which of the many quantities called KL each KL signal is."""
    unshown: int = 0
    crowd: Ranks = field(init=False)
    alive: dict[str, float] = field(default_factory=dict)
    open: dict[str, Incident] = field(default_factory=dict)
    cases: dict[str, Page] = field(default_factory=dict)
    """What people were last told of each case, by its name."""
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)
    quiet: Quiet = field(default_factory=Quiet)

    def __post_init__(self) -> None:
        self.crowd = Ranks(self.most_ranks)

    def copy(self) -> Standing:
        """As it is now, untouched by what comes later."""
        made = replace(
            self,
            about=self.about.copy(),
            settings=self.settings.copy(),
            taps=self.taps.copy(),
            signals=self.signals.copy(),
            spreads=self.spreads.copy(),
            logged=self.logged.copy(),
            kl_kinds=self.kl_kinds.copy(),
            alive=self.alive.copy(),
            open=self.open.copy(),
            cases=self.cases.copy(),
            alerts=self.alerts.copy(),
        )
        made.crowd = self.crowd.copy(self._named())
        return made

    def hear(self, record: Record) -> None:
        """Take over what a record says."""
        if record.event is Event.START:
            self._start(record)
        elif record.event is Event.FACTS:
            # An agent that was restarted hears them again: they are no sign of life.
            self._learn(record)
            return
        if record.rank != WHOLE_RUN:
            # Of ranks that are no more there may be a word left.
            if record.attempt >= self.attempt:
                self.crowd.hear(record)
        elif record.event in _MEASURED:
            self._measure(record)
        elif record.event is Event.SAMPLE:
            # Read from files, texts may be of a step long past.
            self._keep(record.values)
        elif record.event is Event.TICK:
            self.alive = {name: n for name, n in record.values.items() if name in LIVENESS}
            self._enter(record.facts.get("state", ""))
        elif record.event is Event.STOP:
            self._enter(_STATE_AFTER.get(record.facts.get("outcome", ""), ""))

    def read(self, sheet: Sheet) -> None:
        """Take over what the ranks of that sheet say of themselves."""
        if sheet.attempt >= self.attempt:
            self.crowd.read(sheet)

    def tell(self, page: Page) -> None:
        """Take over what a page says."""
        incident = page.incident
        if page.reason is Reason.RESOLVED:
            self.open.pop(incident.name, None)
            return
        self.move(incident)
        if page.reason is Reason.OPENED:
            self.alerts[incident.key.detector, incident.severity.value] += 1

    def move(self, incident: Incident) -> None:
        """Take over how an incident is now."""
        if incident.state is State.RESOLVED:
            self.open.pop(incident.name, None)
        else:
            self.open[incident.name] = incident

    def conclude(self, page: Page) -> None:
        """Take over what became of a case."""
        if page.reason is Reason.RESOLVED:
            self.cases.pop(page.incident.name, None)
        else:
            self.cases[page.incident.name] = page

    @property
    def ranks(self) -> dict[int, RankStanding]:
        """Those that are shown one by one."""
        return self.crowd.shown(self._named())

    @property
    def open_cases(self) -> list[Page]:
        """Those of which an incident fires."""
        return [
            page
            for page in self.cases.values()
            if any(each.name in self.open for each in page.incidents)
        ]

    @property
    def state(self) -> str:
        """One of `STATES`."""
        stalled = any(incident.key.detector == STALL for incident in self.open.values())
        return "stalled" if stalled and self.active else self.last_state

    @property
    def active(self) -> bool:
        """Whether the run is, or should be, training."""
        return self.last_state in ACTIVE

    def _enter(self, state: str) -> None:
        if state in STATES:
            self.last_state = state

    def _start(self, record: Record) -> None:
        if record.attempt != self.attempt:
            self.attempt, self.last_state = record.attempt, "starting"
            self.crowd.clear()
            self.taps.clear()
            self._learn(record)
            return
        # A rank that starts late knows less than what the others have found out by then.
        facts = {key: text for key, text in record.facts.items() if key not in self.about}
        values = {key: n for key, n in record.values.items() if key not in self.settings}
        self._learn(replace(record, facts=facts, values=values))

    def _learn(self, record: Record) -> None:
        for name, text in record.facts.items():
            if not name.startswith(TAP):
                _enter(self.about, name, text[:LONGEST_FACT], MOST_FACTS)
            elif record.rank != WHOLE_RUN:
                tap = name.removeprefix(TAP), record.rank
                _enter(self.taps, tap, text[:LONGEST_FACT], MOST_TAPS)
        for name, value in record.values.items():
            if name != "global_step":
                _enter(self.settings, name, value, MOST_FACTS)

    def _measure(self, record: Record) -> None:
        declared = record.values.get("global_step", nan)
        # Anybody may log it, and as NaN too.
        self.step = int(declared) if isfinite(declared) else record.step
        if record.event is Event.STEP:
            self.steps += 1
            self.last_step = record.time
            self.crowd.weigh(record)
            # The last records of a run may be read after its end was.
            self.last_state = "running" if self.active else self.last_state
        elif record.event is Event.SAVE:
            self.saves += 1
            self.last_save = record.time
        self._keep(record.values)
        self._keep_kinds(record)
        self.spreads.update((name, s) for name, s in record.spread.items() if name in SIGNALS)

    def _keep_kinds(self, record: Record) -> None:
        for name in SIGNALS_OF_KL:
            kind = (
                KlKind.read(record.facts.get(fact_of(name), "")) if name in record.values else None
            )
            if kind:
                self.kl_kinds[name] = kind

    def _keep(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name in SIGNALS:
                self.signals[name] = value
            elif name != WEIGHT:
                self._keep_logged(label(name), value)

    def _keep_logged(self, key: str, value: float) -> None:
        if key in self.logged or len(self.logged) < MOST_KEYS:
            self.logged[key] = value
        else:
            self.unshown += 1

    def _named(self) -> Iterator[int]:
        """Ranks that incidents which fire are about."""
        for incident in self.open.values():
            judged, culprit = incident.key.rank, incident.finding.rank
            if judged != WHOLE_RUN:
                yield judged
            elif culprit is not None:
                yield culprit


def tap_state(told: str) -> str:
    """One of `TAP_STATES`, from what a tap says of itself.

    >>> tap_state("on, without Trainer.step"), tap_state("off: TypeError in before_step")
    ('partial', 'off')
    """
    if told == "on":
        return told
    return "partial" if told.startswith("on,") else "off"


def _enter(book: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Take over what is newest of what is known, and what is new while there is room."""
    if key in book or len(book) < most:
        book[key] = value
