"""Snapshot: what is frozen comes back the same, and nothing else can come in."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from math import inf, isnan, nan

import pytest

from sentinel.detectors.run_died import RunDied
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import IncidentKey
from sentinel.pipeline.snapshot import SnapshotError, deserialize, serialize

HERE = __name__


@dataclass
class Keeper:
    """Stands for a plug-in's detector: fields, and state beside them."""

    window: int = 3
    seen: deque[float] = field(default_factory=lambda: deque([1.0], maxlen=3))


@dataclass(frozen=True, slots=True)
class Slotted:
    word: str = "kept"


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
    ],
    ids=repr,
)
def test_comes_back_equal(value):
    assert deserialize(serialize(value)) == value


def test_not_a_number_survives():
    assert isnan(deserialize(serialize([nan]))[0])


def test_a_bounded_deque_stays_bounded():
    kept = deserialize(serialize(deque([1, 2], maxlen=2)))
    kept.append(3)

    assert list(kept) == [2, 3]


def test_a_plug_ins_state_comes_back_with_what_was_set_beside_its_fields():
    keeper = Keeper()
    keeper.armed = True

    kept = deserialize(serialize([keeper, Slotted()]), [HERE])

    assert (kept[0], kept[0].armed, kept[1]) == (keeper, True, Slotted())


def test_what_was_written_before_a_class_had_a_field_is_refused():
    """It would break in use, and again in every agent that took over."""
    older = json.loads(serialize([Keeper(), Slotted()]))
    del older["list"][0]["state"]["seen"]

    with pytest.raises(SnapshotError, match="Keeper lacks seen"):
        deserialize(json.dumps(older), [HERE])


def test_an_object_without_state_comes_back():
    assert type(deserialize(serialize(RunDied()))) is RunDied


def test_a_class_of_a_module_not_in_use_is_refused():
    with pytest.raises(SnapshotError, match="neither of sentinel nor of a plug-in"):
        deserialize(serialize(Keeper()))


def test_text_cannot_reach_a_function():
    """Only what the text names is looked up, and only classes of trusted modules are."""
    text = json.dumps({"object": "os:system", "state": {}})

    with pytest.raises(SnapshotError):
        deserialize(text)


@pytest.mark.parametrize("text", ["", "{", '{"object": 3}', '{"strange": 1}', '{"enum": "x"}'])
def test_damaged_text_is_one_clear_error(text):
    with pytest.raises(SnapshotError):
        deserialize(text)


def test_what_cannot_be_kept_is_named():
    keeper = Keeper()
    keeper.file = iter(())

    with pytest.raises(SnapshotError, match=r"state\.file"):
        serialize(keeper)
