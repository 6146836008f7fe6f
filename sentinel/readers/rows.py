"""Converts the rows of a training log to records of the whole run.

A row is a dict of any values. Keys of nested dicts are joined by "/", numbers may be strings, and
other values are ignored: TRL writes null for a reward function that applied to no completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from typing import Any

from sentinel.model.record import (
    EVAL,
    SEVERAL_WRITERS_KEY,
    START,
    STEP,
    WHOLE_RUN,
    YEAR_2001,
    Event,
    Record,
)
from sentinel.readers.log_config import text_metadata
from sentinel.readers.loss_parts import add_total_losses
from sentinel.readers.row_kinds import (
    SECOND_WRITER,
    WRITER_KEYS,
    EpochMeans,
    LockstepWriters,
    RowKind,
    Writers,
    stated_kind,
    writer_name,
)
from sentinel.signals.catalogue import SIGNALS, canonical_name, eval_name, normalize_key
from sentinel.signals.framework_config import parse_framework_config
from sentinel.signals.key_map import KeyMap, KeyMapping, displaced_mapping
from sentinel.signals.kl import KL_SIGNALS, kl_kind_attributes
from sentinel.signals.run_metadata import RunMetadata

MAX_DEPTH = 8
"""Levels of nested dicts that are read."""

STEP_KEYS = (
    "step",
    "global_step",
    "train/global_step",
    "training/global_step",
    "trainer/global_step",
    "current_steps",
    "iteration",
    "iter",
    "global_iter",
    "_step",
    "num_updates",
    "train_num_updates",
    "training_iteration",
    "total_timesteps",
    "time/total_timesteps",
)
"""Keys of a row's step, best first."""

STEP_FRACTION_KEY = "global_step/max_steps"
"""A key of ms-swift with a value such as "5/2400"."""

MAX_STEPS_KEYS = ("max_steps", "total_steps")
TIME_KEYS = ("time", "timestamp", "_timestamp")
WRAPPER_KEYS = frozenset({"data", "metrics", "values", "scalars", "logs"})
"""Nested dicts whose key is not part of the names in them."""

HELD_OUT_PREFIX = re.compile(r"(eval|val|valid|validation|test)[/_ -]", re.IGNORECASE)
NEUTRAL_KEYS = frozenset({"epoch", "training/epoch", *STEP_KEYS, *MAX_STEPS_KEYS, *TIME_KEYS})
TRAINING_OUTCOMES = ("loss", "reward")
"""Signals whose rows are steps, even if the key names an evaluation."""
EPOCH_PREFIX = "epoch_mean/"
"""Prefix of the names of signals that a row has as means over an epoch."""
EVENT_NAMES = frozenset(event.value for event in Event)
CONFIG_EVENTS = (Event.START.value, Event.METADATA.value)
"""Events whose rows may hold configuration, including texts."""

MAX_STEP = 2**53
"""A larger number is not a step; no run has so many, and a float is not exact beyond it."""
MAX_ROW_GAP_SECONDS = 5.0
"""A row is complete once nothing was added to it for this long."""

# A class looks its members up in many times the time of a global name.
_ROW_OF_STEP = RowKind.STEP
_FLOAT = {float}
_WRITER_KEYS = frozenset(WRITER_KEYS)
MAX_LAYOUTS = 1024
MAX_KEY_SETS = 256
MAX_REMEMBERED_ROWS = 1024
"""Rows of one step with which another row of that step is compared."""
MAX_EPOCHS = 10_000
"""Epochs to which a run may go back; the newest ones."""


def start_record(
    first: Record, metadata: Mapping[str, str], values: Mapping[str, float] | None = None
) -> Record:
    """The START of an attempt whose first record is `first`, with its run, step and time."""
    return replace(first, event=START, values=values or {}, attributes=metadata)


MIN_CONSECUTIVE_ROWS = 3
"""Consecutive suspect rows before NaN is restored: a loss of 0 has no gradient, so few suffice."""

MAX_PARAMETER_GROUPS = 64


@dataclass
class NanRestorer:
    """Restores NaN where a framework logged a finite number in its place, in the rows of one run.

    DeepSpeed before 0.19 replaces the norm of a parameter group by -1 if it is not finite, and
    still takes the root of the sum of squares: every step then has the norm 1, or the root of the
    number of groups. The trainer above it logs a NaN loss as 0. `consecutive_suspects` counts the
    newest such rows.
    """

    consecutive_suspects: int = 0

    def restore(self, values: dict[str, float]) -> dict[str, float]:
        """The values of a row, or others with NaN restored.

        Rows with a reward are left unchanged: a policy-gradient loss is near 0 by construction.
        """
        loss, norm = values.get("loss"), values.get("grad_norm")
        if loss is None or norm is None:
            return values
        is_suspect = (
            (loss == 0.0 or not isfinite(loss))
            and _is_root_of_integer(norm)
            and "reward" not in values
        )
        self.consecutive_suspects = self.consecutive_suspects + 1 if is_suspect else 0
        if self.consecutive_suspects < MIN_CONSECUTIVE_ROWS:
            return values
        return {**values, "loss": nan, "grad_norm": nan}


@dataclass
class StepFilter:
    """Distinguishes a run whose step goes back from two writers that count steps separately.

    Rows with the same set of keys come from one writer. A step below the last one is the run's own
    only if it is also below the last step of its own set of keys. Two ranks that write the same
    keys to one file look like a run that begins again; once the step goes back a second time, to
    where the repeated rows had ended, they are two writers. `is_other_writer` is whether that shows
    for the newest row.
    """

    last_step: float | None = None
    is_other_writer: bool = False
    last_step_by_keys: dict[frozenset[str], float] = field(default_factory=dict)
    repeats_by_keys: dict[frozenset[str], RepeatedRows] = field(default_factory=dict)

    def accepts(self, keys: frozenset[str], step: float) -> bool:
        """Whether the step is the run's; False if it is another writer's count."""
        self.is_other_writer = False
        own = self.last_step_by_keys.get(keys)
        if own is not None or len(self.last_step_by_keys) < MAX_KEY_SETS:
            self.last_step_by_keys[keys] = step
            repeats = self.repeats_by_keys.get(keys)
            if repeats is None:
                repeats = self.repeats_by_keys[keys] = RepeatedRows(step, step)
            self.is_other_writer = repeats.is_other_writer(step)
            if self.is_other_writer:
                return False
        if self.last_step is not None and step < self.last_step and (own is None or step >= own):
            return False
        self.last_step = step
        return True


@dataclass
class RepeatedRows:
    """Recognises a second writer of the same keys by the steps of their rows.

    `end` is the last repeated step, None before the step went back to `first`; `interval` is the
    largest distance of two rows.
    """

    first: float
    highest: float
    last: float = -inf
    interval: float = 0.0
    end: float | None = None
    has_two_writers: bool = False

    def is_other_writer(self, step: float) -> bool:
        """Whether the step is one that a second writer repeats."""
        last, self.last = self.last, step
        if step > self.highest:
            if last == self.highest:
                self.interval = max(self.interval, step - last)
            self.highest = step
            return False
        if last > step and self.end is None and step <= self.first:
            # The run begins again, or a second writer begins.
            self.end = step
        elif last > step and self.end is not None and not self.has_two_writers:
            self.has_two_writers = self.end < step <= self.end + self.interval
        if self.end is not None and step > self.end:
            self.end = step
        return self.has_two_writers


@dataclass
class RowMemory:
    """Recognises rows of one step that a log holds twice, as when each rank writes them.

    Rows of a step that the log goes back to are no repetition, even if their values are: a resume
    with the same random numbers takes the same steps again. `known` are the hashes of the rows of
    `step`, but for the newest one, `last`: most steps have one row, whose hash is not needed.
    """

    step: int | None = None
    known: set[int] = field(default_factory=set)
    last: Mapping[str, float] | None = None

    def is_repeated(
        self, step: int | None, values: Mapping[str, float], time_keys: Iterable[str]
    ) -> bool:
        """Add a row; whether one before had this step, and the same values but for the times.

        A row without a step repeats none, nor does one with a NaN, which equals nothing.
        """
        if step is None or isnan(sum(values.values())):
            return False
        if time_keys:
            values = {**values, **dict.fromkeys(time_keys, 0.0)}
        last, self.last = self.last, values
        if step == self.step and last is not None:
            self.known.add(_content_hash(last))
            if len(self.known) < MAX_REMEMBERED_ROWS:
                return _content_hash(values) in self.known
        self.step = step
        self.known.clear()
        return False


def _content_hash(values: Mapping[str, float]) -> int:
    return hash((tuple(values), *values.values()))


@dataclass
class EpochSteps:
    """Adds up steps that a writer counts from the start of each epoch.

    The count of a writer, whose rows have the same set of keys, starts over where the number of its
    epoch grows. A resume repeats epochs. `offset` is the number of steps before the present epoch,
    `offsets` those before the newest epochs; `by_keys` holds epoch and step of the last row by its
    keys.
    """

    offset: int = 0
    epoch: float = -inf
    highest_step: int = 0
    offsets: dict[float, int] = field(default_factory=dict)
    by_keys: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)

    def add_up(self, keys: tuple[str, ...], epoch: float | None, step: int) -> int:
        """The step of the run for a row with these keys."""
        if epoch is not None and epoch.is_integer():
            last_epoch, last_step = self.by_keys.get(keys, (epoch, step))
            if step <= last_step and epoch > max(last_epoch, self.epoch):
                self.offset, self.epoch = self.highest_step + (step == 0), epoch
            elif epoch < last_epoch and epoch in self.offsets:
                self.offset, self.epoch = self.offsets[epoch], epoch
                self.highest_step = self.offset
            if epoch not in self.offsets:
                self.offsets[epoch] = self.offset
                if len(self.offsets) > MAX_EPOCHS:
                    del self.offsets[next(iter(self.offsets))]
            if keys in self.by_keys or len(self.by_keys) < MAX_KEY_SETS:
                self.by_keys[keys] = epoch, step
        step += self.offset
        self.highest_step = max(self.highest_step, step)
        return step


@dataclass(slots=True)
class RowLayout:
    """What all rows with the same keys share: their signals, and what they are of.

    `keys` are those keys. `is_unscaled` is whether no value needs a unit conversion, `is_renamed`
    whether a signal has another name than its key, and `names_writer` whether a key names the
    writer. `step_keys` and `time_keys` are the keys of the step and of the time among them, best
    first, and `series` are the names of the signals of a step, without its number. `outcome` is the
    loss, else the reward, empty if there is neither, and `has_evaluation` is whether a value is of
    an evaluation.
    """

    keys: tuple[str, ...]
    key_mappings: list[KeyMapping]
    signal_names: list[str]
    is_unscaled: bool
    is_renamed: bool
    names_writer: bool
    kind: RowKind
    step_keys: tuple[str, ...]
    time_keys: tuple[str, ...]
    series: frozenset[str]
    outcome: str
    has_evaluation: bool


@dataclass
class RowConverter:
    """Converts the rows of one run to records, in order.

    If several keys stand for one signal, the best key in the first row with any of them is used for
    the whole run: the loss of a step and the loss of an epoch are two series, and mixed they would
    jump. The attributes of a record hold the logged key of every signal that has another name, and
    the kind of every KL. `null_is_nan` is whether the writer encodes NaN as null. `metadata` is
    what is known of the run, such as its framework; keys may add to it. `assigned` are the keys
    that stand for signals by the settings or their words. `record_count` counts records;
    `last_step` is the step of the newest one. `problem` is why the newest row gave no record.
    """

    run: str
    null_is_nan: bool = False
    metadata: RunMetadata = field(default_factory=RunMetadata)
    key_mappings: dict[str, KeyMapping] = field(default_factory=dict)
    key_by_signal: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    step_filter: StepFilter = field(default_factory=StepFilter)
    epoch_steps: EpochSteps = field(default_factory=EpochSteps)
    writers: Writers = field(default_factory=Writers)
    lockstep: LockstepWriters = field(default_factory=LockstepWriters)
    rows: RowMemory = field(default_factory=RowMemory)
    epoch_means: dict[str, EpochMeans] = field(
        default_factory=lambda: {name: EpochMeans() for name in TRAINING_OUTCOMES}
    )
    nan_restorer: NanRestorer = field(default_factory=NanRestorer)
    layouts: dict[tuple[str, ...], RowLayout] = field(default_factory=dict)
    assigned: dict[str, KeyMapping] = field(default_factory=dict)
    record_count: int = 0
    last_step: int | None = None
    problem: str = ""

    def select_writer(self, name: str) -> None:
        """Read the rows of that writer only; of the first one if the name is empty."""
        self.lockstep.selected = int(name == SECOND_WRITER)
        self.writers.selected = "" if self.lockstep.selected else name

    @property
    def other_trainings(self) -> list[str]:
        """The names of the other writers of the log, if each is a training."""
        is_second_left_out = self.lockstep.is_known and not self.lockstep.selected
        return [*self.writers.separate_trainings, *[SECOND_WRITER] * is_second_left_out]

    def to_record(self, row: Mapping[str, Any]) -> Record | None:
        """The row's record.

        None if it has no number and no event, repeats an earlier row, or is of another writer.
        """
        self.problem = ""
        known = self._known_layout(row)
        names_writer = not _WRITER_KEYS.isdisjoint(row) if known is None else known.names_writer
        if names_writer and self.writers.is_other(row):
            self.problem = f"it is of another writer ({writer_name(row)})"
            return None
        if known is not None:
            return self._convert(row, row, known)
        values = add_total_losses(dict(_flatten_numbers(row, self.null_is_nan)))
        if not values and not row.get("event"):
            return None
        return self._convert(row, values)

    def _convert(
        self, row: Mapping[str, Any], values: Mapping[str, float], known: RowLayout | None = None
    ) -> Record | None:
        """The record of these numbers of a row; `known` is their layout if they are all of it."""
        config: Mapping[str, str] = {}
        if known is None:
            config = self._read_config(row)
            if self.metadata.observe_keys(values.keys()):
                self._drop_changed_keys()
        layout = known or self._layout(tuple(values))
        own_step = step = _row_step(values, layout.step_keys)
        if self.rows.is_repeated(step, values, layout.time_keys) and "event" not in row:
            self.problem = "it repeats an earlier row"
            return None
        self.record_count += 1
        if step is not None:
            step = self.epoch_steps.add_up(layout.keys, values.get("epoch"), step)
            self.last_step = step
        kind = layout.kind if known else _row_kind(row, layout)
        is_evaluation = kind is RowKind.EVALUATION
        event = EVAL if is_evaluation else STEP
        event = event if known else _row_event(row, event)
        signals = self._signal_values(layout, values)
        if layout.outcome and not is_evaluation:
            has_evaluation, means = layout.has_evaluation, self.epoch_means[layout.outcome]
            kind = means.find_kind(layout.keys, own_step, kind, has_evaluation=has_evaluation)
        if kind is _ROW_OF_STEP:
            signals = self.nan_restorer.restore(signals)
        else:
            rename = eval_name if is_evaluation else _epoch_name
            signals = {rename(name): value for name, value in signals.items()}
        if event is STEP and step is not None:
            global_step = signals.pop("global_step", float(step))
            series = layout.series if layout.is_unscaled else frozenset(signals)
            is_accepted = self.step_filter.accepts(series, global_step)
            if self.step_filter.is_other_writer or (
                "loss" in signals and self.lockstep.is_other(series, step, signals["loss"])
            ):
                self.problem = "another writer repeats the steps of the first one"
                self.attributes = {**self.attributes, SEVERAL_WRITERS_KEY: "1"}
                return None
            if is_accepted:
                signals["global_step"] = global_step
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=self.record_count if self.last_step is None else self.last_step,
            time=(
                _row_time(values, layout.time_keys, self.record_count)
                if layout.time_keys
                else float(self.record_count)
            ),
            event=event,
            values=signals,
            attributes={**self.attributes, **config} if config else self.attributes,
        )

    def _read_config(self, row: Mapping[str, Any]) -> dict[str, str]:
        if row.get("event") not in CONFIG_EVENTS:
            return {}
        config = text_metadata(parse_framework_config(row))
        if config:
            self.metadata.update_metadata(config)
        return config

    def _known_layout(self, row: Mapping[str, Any]) -> RowLayout | None:
        """The layout of a row that has only floats, under keys that cannot change the mapping.

        That is nearly every row of a long log.
        """
        if not self.metadata.assignment.is_settled:
            return None
        layout = self.layouts.get(tuple(row))
        return layout if layout is not None and {*map(type, row.values())} == _FLOAT else None

    def _layout(self, keys: tuple[str, ...]) -> RowLayout:
        layout = self.layouts.get(keys)
        if layout is None:
            new_keys = [key for key in keys if key not in self.key_mappings]
            if new_keys:
                self._map_keys(new_keys)
            layout = _build_layout(keys, [self.key_mappings[key] for key in keys])
            if len(self.layouts) < MAX_LAYOUTS:
                self.layouts[keys] = layout
        return layout

    def _signal_values(self, layout: RowLayout, values: Mapping[str, float]) -> dict[str, float]:
        if layout.is_unscaled:
            if not layout.is_renamed:
                return {**values}
            return dict(zip(layout.signal_names, values.values(), strict=True))
        signals = {}
        for mapping, value in zip(layout.key_mappings, values.values(), strict=True):
            converted = mapping.convert(value)
            if converted is not None:
                signals[mapping.name] = converted
        return signals

    def _drop_changed_keys(self) -> None:
        """Forget what keys meant that now mean something else."""
        assigned = self.metadata.assignment.assigned
        for key in [key for key in self.key_mappings if key in self.assigned or key in assigned]:
            if self.assigned.get(key) != assigned.get(key):
                name = self.key_mappings.pop(key).name
                if self.key_by_signal.get(name) == key:
                    del self.key_by_signal[name]
        self.assigned = assigned
        self.layouts.clear()

    def _map_keys(self, new_keys: list[str]) -> None:
        key_map = self.metadata.key_map
        # A new key may take a signal over from another key.
        self.layouts.clear()
        for key in sorted(new_keys, key=lambda key: _alias_rank(key, key_map)):
            self._assign_signal(key, key_map.lookup(key))
        self.attributes = {name: key for name, key in self.key_by_signal.items() if name != key}
        kl_keys = {n: self.key_by_signal[n] for n in KL_SIGNALS if n in self.key_by_signal}
        self.attributes |= kl_kind_attributes(kl_keys, self.metadata.metadata)

    def _assign_signal(self, key: str, mapping: KeyMapping) -> None:
        owner = self.key_by_signal.get(mapping.name)
        if owner is not None and key != mapping.name and key not in self.assigned:
            self.key_mappings[key] = KeyMapping(key)
            return
        if owner is not None:
            # The signal's own name takes precedence, even if it comes later, and so do settings.
            self.key_mappings[owner] = displaced_mapping(owner)
        self.key_mappings[key] = mapping
        self.key_by_signal[mapping.name] = key


def _alias_rank(key: str, key_map: KeyMap) -> int:
    """How well a key names its signal, lower is better; 0 is the signal's own name."""
    name = key_map.lookup(key).name
    aliases = SIGNALS[name].aliases if name in SIGNALS else ()
    normalized = normalize_key(key)
    if normalized == name:
        return 0
    return aliases.index(normalized) + 1 if normalized in aliases else len(aliases) + 1


def _flatten_numbers(
    row: Mapping[str, Any], null_is_nan: bool, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}" if prefix else str(key)
        if type(value) is float:
            yield name, value
        elif isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                inner = prefix if key in WRAPPER_KEYS else f"{name}/"
                yield from _flatten_numbers(value, null_is_nan, inner, depth + 1)
        elif value is None:
            if null_is_nan and canonical_name(name) in SIGNALS:
                yield name, nan
        elif key == STEP_FRACTION_KEY and isinstance(value, str):
            yield from _flatten_numbers(
                dict(zip(key.split("/"), value.split("/"), strict=False)), False
            )
        elif (number := parse_number(value)) is not None:
            yield name, number


def parse_number(value: object) -> float | None:
    """The number in a value or in its text; None if it is not one, such as a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return inf if isinstance(value, int) and value > 0 else -inf
    except ValueError:
        return None


def row_step(row: Mapping[str, Any]) -> int | None:
    """The step of a row of any values; None if it has none."""
    return _row_step(dict(_flatten_numbers(row, null_is_nan=False)), STEP_KEYS)


def _row_step(values: Mapping[str, float], step_keys: Iterable[str]) -> int | None:
    for key in step_keys:
        step = values.get(key)
        if step is not None and isfinite(step) and abs(step) < MAX_STEP:
            return int(step)
    return None


def _row_time(values: Mapping[str, float], time_keys: Iterable[str], record_count: int) -> float:
    """The row's own time; else its number, so that time increases."""
    for key in time_keys:
        if YEAR_2001 < (time := values[key]) < inf:
            return time
    return float(record_count)


def _row_kind(row: Mapping[str, Any], layout: RowLayout) -> RowKind:
    """What the row is of: by a text in it, else by its keys."""
    if _is_event(row):
        return RowKind.EVALUATION if row["event"] == Event.EVAL.value else RowKind.STEP
    kind = stated_kind(row)
    is_stated = kind is RowKind.EVALUATION or (kind is RowKind.EPOCH and layout.outcome != "")
    return kind if is_stated else layout.kind


def _row_event(row: Mapping[str, Any], by_kind: Event) -> Event:
    return Event(row["event"]) if _is_event(row) else by_kind


def _is_event(row: Mapping[str, Any]) -> bool:
    name = row.get("event")
    return isinstance(name, str) and name in EVENT_NAMES


def _epoch_name(name: str) -> str:
    """The name of a signal in a row of means over an epoch; progress and rates have no mean."""
    is_measured = name in SIGNALS and eval_name(name) != name and name != "learning_rate"
    return f"{EPOCH_PREFIX}{name}" if is_measured else name


def _build_layout(keys: tuple[str, ...], key_mappings: list[KeyMapping]) -> RowLayout:
    metric_keys = [key for key in keys if key not in NEUTRAL_KEYS]
    name_by_key = {key: each.name for key, each in zip(keys, key_mappings, strict=True)}
    is_held_out = (
        name_by_key[key] not in TRAINING_OUTCOMES
        and (HELD_OUT_PREFIX.match(key) or name_by_key[key].startswith("eval_"))
        for key in metric_keys
    )
    return RowLayout(
        keys,
        key_mappings,
        [mapping.name for mapping in key_mappings],
        all(mapping.factor == 1.0 and not mapping.zero_is_missing for mapping in key_mappings),
        any(mapping.name != key for key, mapping in zip(keys, key_mappings, strict=True)),
        not _WRITER_KEYS.isdisjoint(keys),
        RowKind.EVALUATION if metric_keys and all(is_held_out) else RowKind.STEP,
        tuple(key for key in STEP_KEYS if key in name_by_key),
        tuple(key for key in TIME_KEYS if key in name_by_key),
        frozenset(name_by_key.values()) - {"global_step"},
        next((name for name in TRAINING_OUTCOMES if name in name_by_key.values()), ""),
        any(name.startswith("eval_") for name in name_by_key.values()),
    )


def _is_root_of_integer(norm: float) -> bool:
    """Whether it is the root of an integer number of groups, to a relative error of 1e-6."""
    groups = round(norm * norm) if 0.0 < norm <= MAX_PARAMETER_GROUPS else 0
    return 1 <= groups <= MAX_PARAMETER_GROUPS and abs(norm - groups**0.5) <= 1e-6 * norm
