"""Serialized state is restored unchanged, and nothing else can be loaded."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from math import inf, isnan, nan
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from sentinel.config.plugins import load_classes
from sentinel.detectors.run_died import RunDied
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import IncidentKey
from sentinel.pipeline.snapshot import SnapshotError, deserialize, serialize

HERE = __name__


@dataclass
class Stateful:
    """Like a detector of a plug-in: fields, and other attributes."""

    window: int = 3
    seen: deque[float] = field(default_factory=lambda: deque([1.0], maxlen=3))


@dataclass(frozen=True, slots=True)
class Slotted:
    text: str = "stored"


class Pair(NamedTuple):
    step: int
    loss: float


class Steps(list[int]):
    """A list of a class of its own."""


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "text",
        [1, 2.5, None],
        (1, (2, 3)),
        {3, 4},
        frozenset({5}),
        {"a": {1: 2}},
        {IncidentKey("run", -1, "kl_blowup"): Severity.CRITICAL},
        Finding("A sentence.", {"kl": inf}, Severity.INFO, 3, None),
        deque([1.0, 2.0], maxlen=2),
        deque([(1, Severity.INFO)]),
        {3: b"\x00\xff of a matrix"},
    ],
    ids=repr,
)
def test_a_value_is_restored_unchanged(value):
    assert deserialize(serialize(value)) == value


def test_nan_is_restored():
    assert isnan(deserialize(serialize([nan]))[0])


def test_a_bounded_deque_stays_bounded():
    restored = deserialize(serialize(deque([1, 2], maxlen=2)))
    restored.append(3)

    assert list(restored) == [2, 3]


def test_attributes_that_are_not_fields_are_restored():
    stateful = Stateful()
    stateful.armed = True

    restored = deserialize(serialize([stateful, Slotted()]), [HERE])

    assert (restored[0], restored[0].armed, restored[1]) == (stateful, True, Slotted())


def test_state_that_lacks_a_field_is_refused():
    """It would raise later, in every agent that takes over."""
    older = json.loads(serialize([Stateful(), Slotted()]))
    del older["list"][0]["state"]["seen"]

    with pytest.raises(SnapshotError, match="Stateful lacks seen"):
        deserialize(json.dumps(older), [HERE])


def test_an_object_without_attributes_is_restored():
    assert type(deserialize(serialize(RunDied()))) is RunDied


def test_a_class_of_an_unknown_module_is_refused():
    with pytest.raises(SnapshotError, match="neither of sentinel nor of a plug-in"):
        deserialize(serialize(Stateful()))


def test_text_cannot_name_a_function():
    """Only names in trusted modules are looked up."""
    text = json.dumps({"object": "os:system", "state": {}})

    with pytest.raises(SnapshotError):
        deserialize(text)


@pytest.mark.parametrize("text", ["", "{", '{"object": 3}', '{"strange": 1}', '{"enum": "x"}'])
def test_damaged_text_raises_snapshot_error(text):
    with pytest.raises(SnapshotError):
        deserialize(text)


def test_the_error_names_the_attribute_that_cannot_be_stored():
    stateful = Stateful()
    stateful.file = iter(())

    with pytest.raises(SnapshotError, match=r"state\.file"):
        serialize(stateful)


@pytest.mark.parametrize("value", [Pair(1, 2.0), Steps([1, 2])], ids=repr)
def test_a_container_whose_items_would_be_lost_is_refused(value):
    with pytest.raises(SnapshotError, match=rf"state\[\] holds a {type(value).__name__}, which"):
        serialize([value])


def test_statistics_have_no_dict_that_a_snapshot_would_make_slow():
    detectors = [make() for make in load_classes("detectors").values()]
    statistics = {
        type(part)
        for detector in detectors
        for part in vars(detector).values()
        if type(part).__module__.startswith("sentinel.stats.")
    }

    assert len(statistics) > 10
    assert not [kind.__name__ for kind in statistics if "__dict__" in dir(kind)]


def test_an_object_keeps_its_attributes_in_a_dict_of_its_own():
    part = Stateful()
    part.extra = 3
    before = vars(part)

    serialize(part)

    assert vars(part) is not before
    assert vars(part) == before


def test_an_object_whose_dict_cannot_be_replaced_is_written():
    assert json.loads(serialize(SimpleNamespace(level=1.0)))["state"] == {"level": 1.0}
