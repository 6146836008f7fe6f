"""Helpers for tests of detectors: records to process, and a check of the detector contract.

def test_my_detector():
    check_detector(MyDetector)
    record, finding = first_finding(MyDetector(), steps(loss=[1.0] * 50 + [9.0] * 10))
    assert record.step == 54
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from math import inf, nan
from random import Random
from typing import Any

from sentinel.model.finding import (
    Clear,
    Detector,
    DetectorOutput,
    Finding,
    Severity,
    wanted_baselines,
)
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS, RunBaselines
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.signals.catalogue import SIGNALS

EXTREME_VALUES = (nan, inf, -inf, 0.0, -1.0, 1e308, -1e308)
HEARTBEAT_KEYS = frozenset(
    {
        *("ranks_running", "ranks_gone", "ranks_failed", "idle_seconds"),
        *("nodes", "nodes_lost", "lost_seconds"),
    }
)
"""Values of heartbeats that a detector can need, besides the signals of the catalogue."""

DOCSTRING_SECTIONS = ["Formula", "Units", "Source", "Defaults"]


def steps(*, first: int = 1, every: int = 1, **series: Sequence[float | None]) -> Iterator[Record]:
    """One record per value: `steps(kl_ref=[0.1, 0.2], loss=[2.0, None])`.

    None leaves a value out. Steps count from `first` by `every`; records are a second apart. Raises
    ValueError if the series differ in length.
    """
    for index, row in enumerate(zip(*series.values(), strict=True)):
        values = {name: x for name, x in zip(series, row, strict=True) if x is not None}
        yield event(Event.STEP, first + index * every, time=float(index), **values)


def event(
    kind: Event, step: int, *, time: float = 0.0, rank: int = WHOLE_RUN, **values: float
) -> Record:
    """One record of the run: `event(Event.SAVE, 500)`, `event(Event.START, 0, save_steps=500)`."""
    return Record(run="run", rank=rank, step=step, time=time, event=kind, values=values)


def first_finding(
    detector: Detector, records: Iterable[Record]
) -> tuple[Record, Finding] | tuple[None, None]:
    """The first record with a finding, and the finding; (None, None) if there is none."""
    for record in records:
        output = update_detector(detector, record)
        if isinstance(output, Finding):
            return record, output
    return None, None


def update_detector(detector: Detector, record: Record) -> DetectorOutput:
    """The output of the detector; as in the engine, None if the record lacks a needed value.

    Baselines that the detector takes are kept with it, so that it has its own.
    """
    if not detector.needs <= record.values.keys():
        return None
    signals = wanted_baselines(detector)
    if not signals:
        return detector.update(record)
    own: RunBaselines = vars(detector).setdefault("baselines_in_test", RunBaselines())
    return detector.update(record, own.update(record, signals & record.values.keys()))


def check_detector(kind: type[Any]) -> None:
    """Check a detector class against the contract. Raises AssertionError with the violated rule."""
    for check in (
        _check_one_class_per_file,
        _check_declarations,
        _check_docstring,
        _check_extreme_values,
        _check_every_event,
        _check_record_not_modified,
        _check_outputs,
        _check_snapshot_restore,
        _check_bounded_state,
    ):
        check(kind)


def _require(condition: bool, kind: type[Any], rule: str) -> None:
    if not condition:
        raise AssertionError(f"{kind.__name__} {rule}.")


def _check_one_class_per_file(kind: type[Any]) -> None:
    _require(is_dataclass(kind), kind, "must be a dataclass whose fields are its settings")
    module = sys.modules[kind.__module__]
    own = [
        n for n, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == kind.__module__
    ]
    public = [name for name in own if not name.startswith("_")]
    _require(
        public == [kind.__name__],
        kind,
        f"must be the only public class of its file, which has {public}",
    )
    try:
        kind()
    except TypeError as error:
        raise AssertionError(f"{kind.__name__} must have a default for every setting.") from error


def _check_declarations(kind: type[Any]) -> None:
    unknown = set(kind.needs) - SIGNALS.keys() - HEARTBEAT_KEYS
    _require(not unknown, kind, f"needs {sorted(unknown)}, which are not in the catalogue")
    without_baseline = set(wanted_baselines(kind)) - BASELINE_SETTINGS.keys()
    _require(not without_baseline, kind, f"wants baselines of {sorted(without_baseline)}")
    _require(isinstance(kind.severity, Severity), kind, "must have a severity")
    _require(bool(kind.signal), kind, "must name its signal")
    _require(kind.remedy.strip().endswith("."), kind, "must have a remedy in whole sentences")


def _check_docstring(kind: type[Any]) -> None:
    doc = sys.modules[kind.__module__].__doc__ or ""
    sections = [line for line in doc.splitlines()[1:] if line and not line.startswith(" ")]
    _require(
        sections == DOCSTRING_SECTIONS,
        kind,
        f"must document {DOCSTRING_SECTIONS}, but its docstring has {sections}",
    )
    for setting in fields(kind):
        name = f"`{setting.name}`"
        _require(name in doc, kind, f"must document its setting {name}")


def _check_record_not_modified(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(100):
        before = copy.deepcopy(record)
        update_detector(detector, record)
        _require(record == before, kind, "must not modify the record")


def _check_extreme_values(kind: type[Any]) -> None:
    _require_no_exception(
        kind, _synthetic_run(600, extreme_share=0.2), "must accept extreme values"
    )


def _check_every_event(kind: type[Any]) -> None:
    events = (event(each, step) for step in range(3) for each in Event)
    _require_no_exception(kind, events, "must accept every event")


def _require_no_exception(kind: type[Any], records: Iterable[Record], rule: str) -> None:
    detector = kind()
    for record in records:
        try:
            update_detector(detector, record)
        except Exception as error:
            message = f"{kind.__name__} {rule}, but raised at {record}."
            raise AssertionError(message) from error


def _check_outputs(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(600, extreme_share=0.01):
        output = update_detector(detector, record)
        is_valid = output is None or isinstance(output, Clear | Finding)
        _require(is_valid, kind, "must return a Finding, a Clear or None")
        if isinstance(output, Finding):
            _require(output.summary.endswith("."), kind, "must summarize a finding in a sentence")
            is_plain = all(isinstance(x, float | int | str) for x in output.evidence.values())
            _require(is_plain, kind, "must give numbers or strings as evidence")
            onset = record.step if output.onset_step is None else output.onset_step
            _require(onset <= record.step, kind, "must not report an onset in the future")


def _check_snapshot_restore(kind: type[Any]) -> None:
    original, restored = kind(), kind()
    for index, record in enumerate(_synthetic_run(400, extreme_share=0.01)):
        _require(
            update_detector(original, record) == update_detector(restored, record),
            kind,
            "must continue unchanged from a snapshot",
        )
        if index % 7 == 0:
            restored = deserialize(serialize(restored), [kind.__module__])


def _check_bounded_state(kind: type[Any]) -> None:
    detector, sizes = kind(), []
    for record in _synthetic_run(6000):
        update_detector(detector, record)
        if record.event is Event.STEP and record.step % 2999 == 0:
            sizes.append(len(serialize(detector)))
    _require(
        sizes[-1] <= 1.1 * sizes[-2] + 200, kind, f"must have bounded state, but has {sizes} bytes"
    )


def _synthetic_run(count: int, extreme_share: float = 0.0) -> Iterator[Record]:
    """A run with every signal and checkpoints; `extreme_share` of its values are extreme.

    In its last third every value is fifty times as high, and every step is saved.
    """
    rng = Random(count)  # noqa: S311 - reproducible, not secret
    for step in range(count):
        is_healthy = step < count * 2 / 3
        values = {
            name: rng.choice(EXTREME_VALUES)
            if rng.random() < extreme_share
            else rng.gauss(1.0, 0.1) * (1 if is_healthy else 50)
            for name in SIGNALS
        }
        values["global_step"] = values["optimizer_steps"] = float(step)
        yield Record("run", WHOLE_RUN, step, float(step), values=values)
        if step % 10 == 0 or not is_healthy:
            yield event(Event.SAVE, step, time=float(step))
