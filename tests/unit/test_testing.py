"""`check_detector` accepts a valid detector, and names the rule that an invalid one violates."""

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

import pytest

from sentinel.detectors.kl_blowup import KlBlowup
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import check_detector, event, first_finding, steps

DOCSTRING = """High: the loss is over a limit.

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


def detector_class(monkeypatch, doc=DOCSTRING, **changes):
    """The detector above with changed attributes, in a module of its own."""
    module = ModuleType("a_plug_in")
    module.__doc__ = doc
    kind = type("High", (High,), {"__module__": "a_plug_in", **changes})
    kind = dataclass(kind)
    module.High = kind
    monkeypatch.setitem(sys.modules, "a_plug_in", module)
    return kind


def test_a_valid_detector_passes(monkeypatch):
    check_detector(detector_class(monkeypatch))


def _unbounded(self, record):
    self.__dict__.setdefault("seen", []).append(record.step)


def _modifying(self, record):
    record.values["loss"] = 0.0


def _with_global_state(self, record):
    GlobalState.count += 1
    return Clear() if GlobalState.count % 3 else None


class GlobalState:
    count = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"needs": frozenset({"lossy"})}, "needs .'lossy'., which are not in the catalogue"),
        ({"severity": "warning"}, "must have a severity"),
        ({"remedy": "lower it"}, "remedy in whole sentences"),
        ({"__annotations__": {"knob": int}, "knob": 3}, "must document its setting `knob`"),
        ({"__annotations__": {"limit": float}, "limit": field()}, "default for every setting"),
        ({"update": _modifying}, "must not modify the record"),
        ({"update": lambda _, r: 1 / r.values["loss"]}, "must accept extreme values"),
        (
            {"needs": frozenset(), "update": lambda _, r: r.values["x"]},
            "accept extreme values|accept every event",
        ),
        ({"update": lambda *_: True}, "must return a Finding, a Clear or None"),
        ({"update": lambda *_: Finding("no sentence")}, "in a sentence"),
        ({"update": lambda _, r: Finding("X.", onset_step=r.step + 1)}, "in the future"),
        ({"update": lambda *_: Finding("X.", {"a": [1]})}, "numbers or strings"),
        ({"update": _with_global_state}, "must continue unchanged from a snapshot"),
        ({"update": _unbounded}, "must have bounded state"),
    ],
)
def test_the_violated_rule_is_named(monkeypatch, changes, message):
    kind = detector_class(monkeypatch, **changes)

    with pytest.raises(AssertionError, match=message):
        check_detector(kind)


def test_a_docstring_without_its_sections_is_refused(monkeypatch):
    kind = detector_class(monkeypatch, doc="High.\n\nFormula\n    `limit`")

    with pytest.raises(AssertionError, match=r"must document .*Units"):
        check_detector(kind)


def test_a_second_public_class_in_the_file_is_refused(monkeypatch):
    kind = detector_class(monkeypatch)
    sys.modules["a_plug_in"].Other = type("Other", (), {"__module__": "a_plug_in"})

    with pytest.raises(AssertionError, match="only public class of its file"):
        check_detector(kind)


def test_steps_builds_one_record_per_value_and_leaves_out_none():
    records = list(steps(first=10, every=5, loss=[1.0, 2.0], reward=[None, 0.5]))

    assert [(r.step, r.values) for r in records] == [
        (10, {"loss": 1.0}),
        (15, {"loss": 2.0, "reward": 0.5}),
    ]


def test_steps_refuses_series_of_different_lengths():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        list(steps(loss=[1.0], reward=[1.0, 2.0]))


def test_a_detector_does_not_process_a_record_that_lacks_a_needed_value():
    assert first_finding(KlBlowup(), [event(Event.STEP, 1, loss=1.0)]) == (None, None)
