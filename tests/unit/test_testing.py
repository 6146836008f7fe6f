"""Testing: a detector that breaks an obligation is told which, and a sound one is not."""

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

import pytest

from sentinel.detectors.kl_blowup import KlBlowup
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import check_detector, event, first_finding, steps

SHEET = """High: the loss is over a limit.

Formula
    loss > `limit`

Units
    As the loss.

Source
    None.

Defaults
    Any.
"""


@dataclass
class High:
    limit: float = 10.0

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Lower it."

    def update(self, record):
        return Finding("Too high.") if record.values["loss"] > self.limit else Clear()


def in_a_file_of_its_own(monkeypatch, doc=SHEET, **changes):
    """The detector above with some attributes changed, as a module of its own would hold it."""
    module = ModuleType("a_plug_in")
    module.__doc__ = doc
    kind = type("High", (High,), {"__module__": "a_plug_in", **changes})
    kind = dataclass(kind)
    module.High = kind
    monkeypatch.setitem(sys.modules, "a_plug_in", module)
    return kind


def test_a_sound_detector_passes(monkeypatch):
    check_detector(in_a_file_of_its_own(monkeypatch))


def _remembering(self, record):
    self.__dict__.setdefault("seen", []).append(record.step)


def _meddling(self, record):
    record.values["loss"] = 0.0


def _forgetful(self, record):
    Forgotten.count += 1
    return Clear() if Forgotten.count % 3 else None


class Forgotten:
    count = 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"needs": frozenset({"lossy"})}, "needs .'lossy'., which the catalogue does not have"),
        ({"severity": "warning"}, "must have a severity"),
        ({"remedy": "lower it"}, "what to do"),
        ({"__annotations__": {"knob": int}, "knob": 3}, "must document its knob `knob`"),
        ({"__annotations__": {"limit": float}, "limit": field()}, "default for every knob"),
        ({"update": _meddling}, "must leave the record as it was"),
        ({"update": lambda _, r: 1 / r.values["loss"]}, "must survive odd numbers"),
        ({"needs": frozenset(), "update": lambda _, r: r.values["x"]}, "survive|take any event"),
        ({"update": lambda *_: True}, "must answer an Opinion"),
        ({"update": lambda *_: Finding("no sentence")}, "in a sentence"),
        ({"update": lambda _, r: Finding("X.", onset_step=r.step + 1)}, "in the future"),
        ({"update": lambda *_: Finding("X.", {"a": [1]})}, "numbers or strings"),
        ({"update": _forgetful}, "must go on from a snapshot as it was"),
        ({"update": _remembering}, "must not grow with the run"),
    ],
)
def test_a_broken_obligation_is_named(monkeypatch, changes, told):
    kind = in_a_file_of_its_own(monkeypatch, **changes)

    with pytest.raises(AssertionError, match=told):
        check_detector(kind)


def test_a_data_sheet_without_its_paragraphs_is_refused(monkeypatch):
    kind = in_a_file_of_its_own(monkeypatch, doc="High.\n\nFormula\n    `limit`")

    with pytest.raises(AssertionError, match=r"must document .*Units"):
        check_detector(kind)


def test_a_second_public_class_in_the_file_is_refused(monkeypatch):
    kind = in_a_file_of_its_own(monkeypatch)
    sys.modules["a_plug_in"].Other = type("Other", (), {"__module__": "a_plug_in"})

    with pytest.raises(AssertionError, match="alone in its file"):
        check_detector(kind)


def test_steps_builds_one_record_a_value_and_leaves_out_none():
    records = list(steps(first=10, every=5, loss=[1.0, 2.0], reward=[None, 0.5]))

    assert [(r.step, r.values) for r in records] == [
        (10, {"loss": 1.0}),
        (15, {"loss": 2.0, "reward": 0.5}),
    ]


def test_steps_wants_series_of_one_length():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        list(steps(loss=[1.0], reward=[1.0, 2.0]))


def test_a_detector_is_not_shown_a_record_without_what_it_needs():
    assert first_finding(KlBlowup(), [event(Event.STEP, 1, loss=1.0)]) == (None, None)
