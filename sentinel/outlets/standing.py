"""Standing: where a run stands now, folded from its records and pages.

Whatever is shown of the present (metrics, page, status) is read from here; the past is in the
history. It grows with the number of ranks and of logged keys, both of which are capped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import nan

from sentinel.incident import Incident, Page, Reason
from sentinel.outlets.label import label
from sentinel.record import WHOLE_RUN, Event, Record, Spread
from sentinel.signals import SIGNALS, WEIGHT

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

STALL = "run_stalled"
"""The detector that says whether a run whose processes live still gets anywhere."""

MOST_KEYS = 100
"""Logged keys outside the catalogue that are shown; the first ones seen."""


def worst_rank(spread: Spread) -> int:
    """The first rank whose value is not finite, else the rank with the highest."""
    return spread.bad_ranks[0] if spread.bad_ranks else spread.max_rank


@dataclass(frozen=True, slots=True)
class RankStanding:
    """What is known of one rank now. Times in seconds, `last_step` since the epoch."""

    up: bool = True
    step: int = 0
    step_time: float = nan
    last_step: float = nan


@dataclass(slots=True)
class Standing:
    """Where one run stands. `most_ranks` ranks are followed one by one: the first ones seen."""

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
    signals: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    unshown: int = 0
    ranks: dict[int, RankStanding] = field(default_factory=dict)
    alive: dict[str, float] = field(default_factory=dict)
    open: dict[str, Incident] = field(default_factory=dict)
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def copy(self) -> Standing:
        """As it is now, untouched by what comes later."""
        return replace(
            self,
            about=self.about.copy(),
            signals=self.signals.copy(),
            spreads=self.spreads.copy(),
            logged=self.logged.copy(),
            ranks=self.ranks.copy(),
            alive=self.alive.copy(),
            open=self.open.copy(),
            alerts=self.alerts.copy(),
        )

    def hear(self, record: Record) -> None:
        """Take over what a record says."""
        if record.event is Event.START:
            self._start(record)
        if record.rank != WHOLE_RUN:
            self._hear_rank(record)
        elif record.event in _MEASURED:
            self._measure(record)
        elif record.event is Event.TICK:
            self.alive = dict(record.values)
            self._enter(record.facts.get("state", ""))
        elif record.event is Event.STOP:
            self._enter(_STATE_AFTER.get(record.facts.get("outcome", ""), ""))

    def tell(self, page: Page) -> None:
        """Take over what a page says."""
        incident = page.incident
        if page.reason is Reason.RESOLVED:
            self.open.pop(incident.name, None)
            return
        self.open[incident.name] = incident
        if page.reason is Reason.OPENED:
            self.alerts[incident.key.detector, incident.severity.value] += 1

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
            self.ranks.clear()
        self.about.update(record.facts)
        self.about.update((name, f"{value:g}") for name, value in record.values.items())

    def _measure(self, record: Record) -> None:
        self.step = int(record.values.get("global_step", record.step))
        if record.event is Event.STEP:
            self.steps += 1
            self.last_step = record.time
            # The last records of a run may be read after its end was.
            self.last_state = "running" if self.active else self.last_state
        elif record.event is Event.SAVE:
            self.saves += 1
            self.last_save = record.time
        self._keep(record.values)
        self.spreads.update((name, s) for name, s in record.spread.items() if name in SIGNALS)

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

    def _hear_rank(self, record: Record) -> None:
        known = self.ranks.get(record.rank)
        if known is None and len(self.ranks) >= self.most_ranks:
            return
        known = known or RankStanding()
        if record.event is Event.STEP:
            seconds = record.values.get("step_time", known.step_time)
            known = RankStanding(known.up, record.step, seconds, record.time)
        elif record.event in {Event.START, Event.STOP}:
            known = replace(known, up=record.event is Event.START)
        self.ranks[record.rank] = known
