"""Current state of a run, updated with its records and notifications.

Everything shown of the present (metrics, web page, `sentinel status`) is read from here; the past
is in the history. The size grows with the number of ranks and logged keys; both are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan

from sentinel.metrics.alert_state import AlertState
from sentinel.metrics.label import sanitize_label
from sentinel.metrics.rank_selection import RankSelection, RankState
from sentinel.metrics.reported_metadata import ReportedMetadata
from sentinel.model.record import TRAINING_KEY, WHOLE_RUN, Event, Record, Spread
from sentinel.model.record_batch import RecordBatch
from sentinel.model.run_states import ACTIVE_STATES
from sentinel.pipeline.time_use import TimeUse
from sentinel.signals.catalogue import POSITION_KEYS, SIGNALS, WEIGHT_KEY
from sentinel.signals.coverage import Coverage
from sentinel.signals.kl import KL_SIGNALS, KlKind, kl_kind_attribute
from sentinel.stats.downsampled_history import DownsampledHistory

RUN_STATES = ("starting", "running", "stalled", "finished", "failed", "died")

# An interrupted run was ended on purpose, so it is no failure.
_STATE_BY_OUTCOME = {
    "finished": "finished",
    "interrupted": "finished",
    "exception": "failed",
    "exit": "failed",
    "died": "died",
}
_PROGRESS_EVENTS = frozenset({Event.STEP, Event.EVAL, Event.SAVE})

LIVENESS_HELP = {
    "ranks_running": "Ranks whose process is running.",
    "ranks_gone": "Ranks whose process disappeared without reporting its end.",
    "ranks_failed": "Ranks that ended with an error.",
}
"""Metric help by the values of a heartbeat that count ranks."""

_LIVENESS_KEYS = frozenset({*LIVENESS_HELP, "idle_seconds"})

MAX_LOGGED_KEYS = 100
"""Number of logged keys outside the catalogue that are shown: the first ones."""


def worst_rank(spread: Spread) -> int:
    """The first rank with a non-finite value; without one, the rank with the highest value."""
    return spread.bad_ranks[0] if spread.bad_ranks else spread.max_rank


@dataclass(slots=True)
class RunState:
    """Current state of one run; `max_ranks_shown` ranks and some outliers are shown singly."""

    run: str
    max_ranks_shown: int = 64
    attempt: int = -1
    last_state: str = "starting"
    """State by the records alone, without `stalled`."""
    step: int | None = None
    training: int = 1
    """The number of the training, of those of the run."""
    step_count: int = 0
    checkpoint_count: int = 0
    last_step_time: float = nan
    newest_step: int = 0
    """The last step as records number it; `step` is that of the trainer."""
    step_times: DownsampledHistory = field(default_factory=DownsampledHistory)
    """Times of steps of the newest course of the run."""
    last_checkpoint_time: float = nan
    last_checkpoint_step: int | None = None
    last_checkpoint_path: str = ""
    """File or folder of the last checkpoint; empty if that is not known."""
    start_time: float = nan
    """Time of the first record of the run."""
    attempt_start_time: float = nan
    """Time at which the newest attempt started."""
    end_time: float = nan
    """Time at which the newest attempt ended; NaN while it runs."""
    signals: dict[str, float] = field(default_factory=dict)
    signal_steps: dict[str, int] = field(default_factory=dict)
    """The steps of these values."""
    spreads: dict[str, Spread] = field(default_factory=dict)
    time_use: TimeUse = field(default_factory=TimeUse)
    thresholds: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Signal and threshold by the detector that last stated one."""
    logged: dict[str, float] = field(default_factory=dict)
    kl_kinds: dict[str, KlKind] = field(default_factory=dict)
    """Pair, estimator and reduction of each KL signal."""
    hidden_value_count: int = 0
    liveness: dict[str, float] = field(default_factory=dict)
    stacks: str = ""
    """Where each rank is, while no step completes, as `serialize_stacks` writes it."""
    reported: ReportedMetadata = field(default_factory=ReportedMetadata)
    alerts: AlertState = field(default_factory=AlertState)
    coverage: Coverage = field(default_factory=Coverage)
    rank_selection: RankSelection = field(init=False)

    def __post_init__(self) -> None:
        self.rank_selection = RankSelection(self.max_ranks_shown)

    def copy(self) -> RunState:
        """A copy that later updates do not change; of the ranks it has only those shown."""
        copied = replace(
            self,
            signals=self.signals.copy(),
            signal_steps=self.signal_steps.copy(),
            spreads=self.spreads.copy(),
            time_use=self.time_use.copy(),
            thresholds=self.thresholds.copy(),
            logged=self.logged.copy(),
            kl_kinds=self.kl_kinds.copy(),
            liveness=self.liveness.copy(),
            reported=self.reported.copy(),
            alerts=self.alerts.copy(),
            coverage=self.coverage.copy(),
            step_times=self.step_times.copy(),
        )
        copied.rank_selection = self.rank_selection.copy(self.alerts.incident_ranks())
        return copied

    def time_of_step(self, step: int) -> float | None:
        """When that step was, in seconds since the epoch; None before the first that was seen."""
        known = self.step_times
        if not known.steps or not known.steps[-1] < step <= self.newest_step:
            return known.value_at(step)
        # The last points are far apart in a long run.
        share = (step - known.steps[-1]) / (self.newest_step - known.steps[-1])
        return known.values[-1] * (1 - share) + self.last_step_time * share

    def update(self, record: Record) -> None:
        """Apply a record of the run or of one rank."""
        # Of other events it is not needed.
        is_stalled = record.event is Event.HEARTBEAT and self.alerts.is_stalled
        self.time_use.update(record, is_stalled=is_stalled)
        if record.event is Event.START:
            self._start_attempt(record)
        elif record.event is Event.METADATA:
            # A restarted agent reads stored metadata again, so it does not show that ranks run.
            self.reported.update(record)
            return
        if record.rank != WHOLE_RUN:
            # Records of the ranks of an earlier attempt may still arrive.
            if record.attempt >= self.attempt:
                self.rank_selection.update(record)
        elif record.event in _PROGRESS_EVENTS:
            self._update_progress(record)
        elif record.event is Event.SAMPLE:
            # Texts read from files may belong to a much earlier step.
            self._update_values(record.values, record.step)
        elif record.event is Event.HEARTBEAT:
            self.liveness = {name: n for name, n in record.values.items() if name in _LIVENESS_KEYS}
            self.stacks = record.attributes.get("stacks", "")
            self._set_state(record.attributes.get("state", ""))
        elif record.event is Event.TRAINING:
            self.training = int(record.values.get(TRAINING_KEY, self.training))
        elif record.event is Event.STOP:
            self.end_time = record.time
            self._set_state(_STATE_BY_OUTCOME.get(record.attributes.get("outcome", ""), ""))

    def update_batch(self, batch: RecordBatch) -> None:
        """Apply the step records of several ranks."""
        if batch.attempt >= self.attempt:
            self.rank_selection.update_batch(batch)

    @property
    def shown_ranks(self) -> dict[int, RankState]:
        """The ranks that are shown singly."""
        return self.rank_selection.select(self.alerts.incident_ranks())

    @property
    def state(self) -> str:
        """One of `RUN_STATES`."""
        return "stalled" if self.is_active and self.alerts.is_stalled else self.last_state

    @property
    def is_active(self) -> bool:
        """Whether the run is, or should be, training."""
        return self.last_state in ACTIVE_STATES

    def _set_state(self, state: str) -> None:
        if state in RUN_STATES:
            self.last_state = state

    def _start_attempt(self, record: Record) -> None:
        if isnan(self.start_time):
            self.start_time = record.time
        if record.attempt != self.attempt:
            self.attempt, self.last_state = record.attempt, "starting"
            self.attempt_start_time, self.end_time = record.time, nan
            self.rank_selection.clear()
            self.reported.patches.clear()
            self.reported.update(record)
        else:
            # The start record of a late rank may be less complete than metadata reported since.
            self.reported.add_missing(record)

    def _update_progress(self, record: Record) -> None:
        global_step = record.values.get("global_step", nan)
        # Any code may log that key, with NaN too.
        self.step = int(global_step) if isfinite(global_step) else record.step
        if record.event is Event.STEP:
            self.step_count += 1
            self.last_step_time, self.newest_step = record.time, record.step
            # A run that continues from a checkpoint takes steps again.
            self.step_times.discard_from(record.step)
            self.step_times.add(record.step, record.time)
            self.rank_selection.update_weights(record)
            # The last steps of a run may be read after its end.
            self.last_state = "running" if self.is_active else self.last_state
        elif record.event is Event.SAVE:
            self.checkpoint_count += 1
            self.last_checkpoint_time = record.time
            self.last_checkpoint_step = self.step
            self.last_checkpoint_path = record.attributes.get("path", "")
        if record.event is not Event.SAVE:
            self.coverage.update(record.values)
        self._update_values(record.values, self.step)
        self._update_kl_kinds(record)
        self.spreads.update((name, s) for name, s in record.spread.items() if name in SIGNALS)

    def _update_kl_kinds(self, record: Record) -> None:
        for name in KL_SIGNALS:
            kind = (
                KlKind.deserialize(record.attributes.get(kl_kind_attribute(name), ""))
                if name in record.values
                else None
            )
            if kind:
                self.kl_kinds[name] = kind

    def _update_values(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if name in SIGNALS:
                self.signals[name], self.signal_steps[name] = value, step
            elif name != WEIGHT_KEY and name not in POSITION_KEYS:
                self._update_logged(sanitize_label(name), value)

    def _update_logged(self, key: str, value: float) -> None:
        if key in self.logged or len(self.logged) < MAX_LOGGED_KEYS:
            self.logged[key] = value
        else:
            self.hidden_value_count += 1
