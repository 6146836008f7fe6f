"""Testing: for whoever writes a detector, the records to show it and the obligations it has.

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

from sentinel.model.finding import Clear, Detector, DetectorOutput, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.signals.catalogue import SIGNALS

EXTREME_VALUES = (nan, inf, -inf, 0.0, -1.0, 1e308, -1e308)
HEARTBEAT_KEYS = frozenset(
    {
        *("ranks_running", "ranks_gone", "ranks_failed", "idle_seconds"),
        *("nodes", "nodes_lost", "lost_seconds"),
    }
)
"""What a TICK record tells, beside which the catalogue names everything."""

DOCSTRING_SECTIONS = ["Formula", "Units", "Source", "Defaults"]


def steps(*, first: int = 1, every: int = 1, **series: Sequence[float | None]) -> Iterator[Record]:
    """One record per value: `steps(kl_ref=[0.1, 0.2], loss=[2.0, None])`.

    Series are of one length; None leaves the value out. Steps count from `first` by `every`, and a
    second passes from one record to the next. Raises ValueError if the lengths differ.
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
    """The first record that the detector finds something in, and what; (None, None) if none."""
    for record in records:
        opinion = update_detector(detector, record)
        if isinstance(opinion, Finding):
            return record, opinion
    return None, None


def update_detector(detector: Detector, record: Record) -> DetectorOutput:
    """The detector's opinion, asked as the engine asks: not at all if a needed value is absent."""
    return detector.update(record) if detector.needs <= record.values.keys() else None


def check_detector(kind: type[Any]) -> None:
    """Hold a detector class to every obligation; AssertionError names the broken one."""
    for obligation in (
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
        obligation(kind)


def _require(condition: bool, kind: type[Any], obligation: str) -> None:
    if not condition:
        raise AssertionError(f"{kind.__name__} {obligation}.")


def _check_one_class_per_file(kind: type[Any]) -> None:
    _require(is_dataclass(kind), kind, "must be a dataclass, its fields being the knobs")
    module = sys.modules[kind.__module__]
    own = [
        n for n, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == kind.__module__
    ]
    public = [name for name in own if not name.startswith("_")]
    _require(public == [kind.__name__], kind, f"must be alone in its file, which has {public}")
    try:
        kind()
    except TypeError as error:
        raise AssertionError(f"{kind.__name__} must have a default for every knob.") from error


def _check_declarations(kind: type[Any]) -> None:
    unknown = set(kind.needs) - SIGNALS.keys() - HEARTBEAT_KEYS
    _require(not unknown, kind, f"needs {sorted(unknown)}, which the catalogue does not have")
    _require(isinstance(kind.severity, Severity), kind, "must have a severity")
    _require(bool(kind.signal), kind, "must name the signal it speaks of")
    _require(kind.remedy.strip().endswith("."), kind, "must say in whole sentences what to do")


def _check_docstring(kind: type[Any]) -> None:
    doc = sys.modules[kind.__module__].__doc__ or ""
    heads = [line for line in doc.splitlines()[1:] if line and not line.startswith(" ")]
    _require(
        heads == DOCSTRING_SECTIONS,
        kind,
        f"must document {DOCSTRING_SECTIONS}, and its docstring has {heads}",
    )
    for knob in fields(kind):
        _require(f"`{knob.name}`" in doc, kind, f"must document its knob `{knob.name}`")


def _check_record_not_modified(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(100):
        before = copy.deepcopy(record)
        update_detector(detector, record)
        _require(record == before, kind, "must leave the record as it was")


def _check_extreme_values(kind: type[Any]) -> None:
    _require_no_exception(kind, _synthetic_run(600, extreme_share=0.2), "must survive odd numbers")


def _check_every_event(kind: type[Any]) -> None:
    every = (event(each, step) for step in range(3) for each in Event)
    _require_no_exception(kind, every, "must take any event")


def _require_no_exception(kind: type[Any], records: Iterable[Record], obligation: str) -> None:
    detector = kind()
    for record in records:
        try:
            update_detector(detector, record)
        except Exception as error:
            message = f"{kind.__name__} {obligation}, and raised at {record}."
            raise AssertionError(message) from error


def _check_outputs(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(600, extreme_share=0.01):
        opinion = update_detector(detector, record)
        _require(
            opinion is None or isinstance(opinion, Clear | Finding), kind, "must answer an Opinion"
        )
        if isinstance(opinion, Finding):
            _require(opinion.summary.endswith("."), kind, "must sum its finding up in a sentence")
            plain = all(isinstance(x, float | int | str) for x in opinion.evidence.values())
            _require(plain, kind, "must give numbers or strings as evidence")
            onset = record.step if opinion.onset_step is None else opinion.onset_step
            _require(onset <= record.step, kind, "must not date an onset in the future")


def _check_snapshot_restore(kind: type[Any]) -> None:
    one, two = kind(), kind()
    for index, record in enumerate(_synthetic_run(400, extreme_share=0.01)):
        _require(
            update_detector(one, record) == update_detector(two, record),
            kind,
            "must go on from a snapshot as it was",
        )
        if index % 7 == 0:
            two = deserialize(serialize(two), [kind.__module__])


def _check_bounded_state(kind: type[Any]) -> None:
    detector, sizes = kind(), []
    for record in _synthetic_run(6000):
        update_detector(detector, record)
        if record.event is Event.STEP and record.step % 2999 == 0:
            sizes.append(len(serialize(detector)))
    _require(sizes[-1] <= 1.1 * sizes[-2] + 200, kind, f"must not grow with the run: {sizes} bytes")


def _synthetic_run(count: int, extreme_share: float = 0.0) -> Iterator[Record]:
    """A run with every signal and saves; a share `odd` of its values is not sane.

    In its last third everything is fifty times too high, and it saves at every step.
    """
    rng = Random(count)  # noqa: S311 - the same weather every time
    for step in range(count):
        well = step < count * 2 / 3
        values = {
            name: rng.choice(EXTREME_VALUES)
            if rng.random() < extreme_share
            else rng.gauss(1.0, 0.1) * (1 if well else 50)
            for name in SIGNALS
        }
        values["global_step"] = values["optimizer_steps"] = float(step)
        yield Record("run", WHOLE_RUN, step, float(step), values=values)
        if step % 10 == 0 or not well:
            yield event(Event.SAVE, step, time=float(step))
