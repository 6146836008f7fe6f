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

from sentinel.metrics.label import sanitize_label
from sentinel.metrics.rank_selection import RankSelection, RankState
from sentinel.model.incident import Incident, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.model.record_batch import RecordBatch
from sentinel.signals.catalogue import SIGNALS, WEIGHT_KEY
from sentinel.signals.kl import KL_SIGNALS, KlKind, kl_kind_fact
from sentinel.signals.run_metadata import (
    MAX_METADATA_CHARS,
    MAX_METADATA_KEYS,
    MAX_PATCHES,
    PATCH_KEY_PREFIX,
)
from sentinel.store.silences import Suppression

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

RUN_STATES = ("starting", "running", "stalled", "finished", "failed", "died")
ACTIVE_STATES = frozenset({"starting", "running", "stalled"})

# Whoever interrupts a run wanted it to end: nobody needs to be woken.
_STATE_BY_OUTCOME = {
    "finished": "finished",
    "interrupted": "finished",
    "exception": "failed",
    "exit": "failed",
    "died": "died",
}
_PROGRESS_EVENTS = frozenset({Event.STEP, Event.EVAL, Event.SAVE})

LIVENESS_KEYS = ("ranks_running", "ranks_gone", "ranks_failed", "idle_seconds")
"""What a TICK counts of all ranks, however many there are."""

STALL_DETECTOR = "run_stalled"
"""The detector that says whether a run whose processes live still gets anywhere."""

MAX_LOGGED_KEYS = 100
"""Logged keys outside the catalogue that are shown; the first ones seen."""


PATCH_STATES = ("on", "partial", "off")
"""A tap is whole; on, but without a part that this version of its framework lacks; or off."""


def worst_rank(spread: Spread) -> int:
    """The first rank whose value is not finite, else the rank with the highest."""
    return spread.bad_ranks[0] if spread.bad_ranks else spread.max_rank


@dataclass(slots=True)
class RunState:
    """Where one run stands. `most_ranks` ranks, and a few that stand out, are shown one by one."""

    run: str
    max_ranks_shown: int = 64
    attempt: int = -1
    last_state: str = "starting"
    step: int | None = None
    step_count: int = 0
    checkpoint_count: int = 0
    last_step_time: float = nan
    last_checkpoint_time: float = nan
    metadata: dict[str, str] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    patches: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the tap of that integration, in that rank, last said of itself."""
    signals: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    kl_kinds: dict[str, KlKind] = field(default_factory=dict)
    """Which of the many quantities called KL each KL signal is."""
    hidden_value_count: int = 0
    rank_selection: RankSelection = field(init=False)
    liveness: dict[str, float] = field(default_factory=dict)
    open_incidents: dict[str, Incident] = field(default_factory=dict)
    cases: dict[str, Notification] = field(default_factory=dict)
    """What people were last told of each case, by its name."""
    alert_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    suppression: Suppression = field(default_factory=Suppression)

    def __post_init__(self) -> None:
        self.rank_selection = RankSelection(self.max_ranks_shown)

    def copy(self) -> RunState:
        """As it is now, untouched by what comes later."""
        made = replace(
            self,
            metadata=self.metadata.copy(),
            settings=self.settings.copy(),
            patches=self.patches.copy(),
            signals=self.signals.copy(),
            spreads=self.spreads.copy(),
            logged=self.logged.copy(),
            kl_kinds=self.kl_kinds.copy(),
            liveness=self.liveness.copy(),
            open_incidents=self.open_incidents.copy(),
            cases=self.cases.copy(),
            alert_counts=self.alert_counts.copy(),
        )
        made.rank_selection = self.rank_selection.copy(self._incident_ranks())
        return made

    def update(self, record: Record) -> None:
        """Take over what a record says."""
        if record.event is Event.START:
            self._start_attempt(record)
        elif record.event is Event.METADATA:
            # An agent that was restarted hears them again: they are no sign of life.
            self._update_metadata(record)
            return
        if record.rank != WHOLE_RUN:
            # Of ranks that are no more there may be a word left.
            if record.attempt >= self.attempt:
                self.rank_selection.update(record)
        elif record.event in _PROGRESS_EVENTS:
            self._update_progress(record)
        elif record.event is Event.SAMPLE:
            # Read from files, texts may be of a step long past.
            self._update_values(record.values)
        elif record.event is Event.HEARTBEAT:
            self.liveness = {name: n for name, n in record.values.items() if name in LIVENESS_KEYS}
            self._set_state(record.attributes.get("state", ""))
        elif record.event is Event.STOP:
            self._set_state(_STATE_BY_OUTCOME.get(record.attributes.get("outcome", ""), ""))

    def update_batch(self, batch: RecordBatch) -> None:
        """Take over what the ranks of that sheet say of themselves."""
        if batch.attempt >= self.attempt:
            self.rank_selection.update_batch(batch)

    def update_notification(self, notification: Notification) -> None:
        """Take over what a page says."""
        incident = notification.incident
        if notification.reason is NotificationReason.RESOLVED:
            self.open_incidents.pop(incident.name, None)
            return
        self.update_incident(incident)
        if notification.reason is NotificationReason.OPENED:
            self.alert_counts[incident.key.detector, incident.severity.value] += 1

    def update_incident(self, incident: Incident) -> None:
        """Take over how an incident is now."""
        if incident.state is IncidentState.RESOLVED:
            self.open_incidents.pop(incident.name, None)
        else:
            self.open_incidents[incident.name] = incident

    def update_case(self, notification: Notification) -> None:
        """Take over what became of a case."""
        if notification.reason is NotificationReason.RESOLVED:
            self.cases.pop(notification.incident.name, None)
        else:
            self.cases[notification.incident.name] = notification

    @property
    def shown_ranks(self) -> dict[int, RankState]:
        """Those that are shown one by one."""
        return self.rank_selection.select(self._incident_ranks())

    @property
    def open_cases(self) -> list[Notification]:
        """Those of which an incident fires."""
        return [
            page
            for page in self.cases.values()
            if any(each.name in self.open_incidents for each in page.incidents)
        ]

    @property
    def state(self) -> str:
        """One of `STATES`."""
        stalled = any(
            incident.key.detector == STALL_DETECTOR for incident in self.open_incidents.values()
        )
        return "stalled" if stalled and self.is_active else self.last_state

    @property
    def is_active(self) -> bool:
        """Whether the run is, or should be, training."""
        return self.last_state in ACTIVE_STATES

    def _set_state(self, state: str) -> None:
        if state in RUN_STATES:
            self.last_state = state

    def _start_attempt(self, record: Record) -> None:
        if record.attempt != self.attempt:
            self.attempt, self.last_state = record.attempt, "starting"
            self.rank_selection.clear()
            self.patches.clear()
            self._update_metadata(record)
            return
        # A rank that starts late knows less than what the others have found out by then.
        facts = {key: text for key, text in record.attributes.items() if key not in self.metadata}
        values = {key: n for key, n in record.values.items() if key not in self.settings}
        self._update_metadata(replace(record, attributes=facts, values=values))

    def _update_metadata(self, record: Record) -> None:
        for name, text in record.attributes.items():
            if not name.startswith(PATCH_KEY_PREFIX):
                _put_bounded(self.metadata, name, text[:MAX_METADATA_CHARS], MAX_METADATA_KEYS)
            elif record.rank != WHOLE_RUN:
                tap = name.removeprefix(PATCH_KEY_PREFIX), record.rank
                _put_bounded(self.patches, tap, text[:MAX_METADATA_CHARS], MAX_PATCHES)
        for name, value in record.values.items():
            if name != "global_step":
                _put_bounded(self.settings, name, value, MAX_METADATA_KEYS)

    def _update_progress(self, record: Record) -> None:
        declared = record.values.get("global_step", nan)
        # Anybody may log it, and as NaN too.
        self.step = int(declared) if isfinite(declared) else record.step
        if record.event is Event.STEP:
            self.step_count += 1
            self.last_step_time = record.time
            self.rank_selection.update_weights(record)
            # The last records of a run may be read after its end was.
            self.last_state = "running" if self.is_active else self.last_state
        elif record.event is Event.SAVE:
            self.checkpoint_count += 1
            self.last_checkpoint_time = record.time
        self._update_values(record.values)
        self._update_kl_kinds(record)
        self.spreads.update((name, s) for name, s in record.spread.items() if name in SIGNALS)

    def _update_kl_kinds(self, record: Record) -> None:
        for name in KL_SIGNALS:
            kind = (
                KlKind.deserialize(record.attributes.get(kl_kind_fact(name), ""))
                if name in record.values
                else None
            )
            if kind:
                self.kl_kinds[name] = kind

    def _update_values(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name in SIGNALS:
                self.signals[name] = value
            elif name != WEIGHT_KEY:
                self._update_logged(sanitize_label(name), value)

    def _update_logged(self, key: str, value: float) -> None:
        if key in self.logged or len(self.logged) < MAX_LOGGED_KEYS:
            self.logged[key] = value
        else:
            self.hidden_value_count += 1

    def _incident_ranks(self) -> Iterator[int]:
        """Ranks that incidents which fire are about."""
        for incident in self.open_incidents.values():
            judged, culprit = incident.key.rank, incident.finding.rank
            if judged != WHOLE_RUN:
                yield judged
            elif culprit is not None:
                yield culprit


def patch_state(text: str) -> str:
    """One of `TAP_STATES`, from what a tap says of itself.

    >>> tap_state("on, without Trainer.step"), tap_state("off: TypeError in before_step")
    ('partial', 'off')
    """
    if text == "on":
        return text
    return "partial" if text.startswith("on,") else "off"


def _put_bounded(mapping: dict[KeyT, ValueT], key: KeyT, value: ValueT, max_size: int) -> None:
    """Take over what is newest of what is known, and what is new while there is room."""
    if key in mapping or len(mapping) < max_size:
        mapping[key] = value
