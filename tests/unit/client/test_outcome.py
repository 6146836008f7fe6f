"""What is recorded of an exception that leaves the training."""

from __future__ import annotations

import pytest

from sentinel.client.outcome import outcome_attributes


def raised(make):
    try:
        make()
    except BaseException as error:
        return outcome_attributes(error)
    raise AssertionError


def test_class_message_and_line_are_recorded():
    def step():
        raise ValueError("bad sample in shard 7\nand more")

    attributes = raised(step)
    line = step.__code__.co_firstlineno + 1
    assert attributes == {
        "outcome": "exception",
        "exception": "ValueError",
        "message": "bad sample in shard 7",
        "location": f"test_outcome.py:{line} in step",
    }


def test_the_line_is_the_innermost_of_the_user():
    def load():
        return int("seven")

    def parse():
        import json

        json.loads("{")

    assert raised(load)["location"].endswith(" in load")
    attributes = raised(parse)
    assert attributes["exception"] == "JSONDecodeError"
    assert attributes["location"].endswith(" in parse")


def test_the_first_cause_is_recorded():
    def chained():
        try:
            {}["shard"]
        except KeyError as error:
            wrapped = RuntimeError("cannot load")
            wrapped.__cause__ = error
            raise ValueError("step failed") from wrapped

    attributes = raised(chained)
    assert attributes["message"] == "step failed"
    assert attributes["caused_by"].startswith("KeyError: 'shard' (test_outcome.py:")


def test_a_suppressed_cause_is_not():
    def suppressed():
        try:
            {}["shard"]
        except KeyError:
            raise ValueError("step failed") from None

    assert "caused_by" not in raised(suppressed)


def test_a_cycle_of_causes_ends():
    error = ValueError("first")
    other = KeyError("second")
    error.__cause__, other.__cause__ = other, error

    assert outcome_attributes(error)["caused_by"] == "KeyError: 'second'"


class HostileError(Exception):
    def __str__(self):
        raise RuntimeError


class Tensor:
    def __repr__(self):
        raise AssertionError("would wait for the device")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (HostileError("x"), None),
        (ValueError("loss is", Tensor()), "loss is <Tensor>"),
        (ValueError(), None),
        (FileNotFoundError(2, "No such file", "/data/x"), "[Errno 2] No such file: '/data/x'"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "two (2 sub-exceptions)"),
    ],
    ids=["str raises", "tensor", "empty", "os error", "group"],
)
def test_odd_exceptions_are_recorded(error, message):
    attributes = outcome_attributes(error)

    assert attributes["exception"] == type(error).__name__
    assert attributes.get("message") == message


@pytest.mark.parametrize(
    ("status", "code"),
    [(None, None), (0, None), (False, None), (3, "3"), (True, "1"), ("no data", "1"), ({}, "1")],
)
def test_an_exit_has_the_status_of_the_interpreter(status, code):
    """`sys.exit` takes any object, hashable or not."""
    attributes = outcome_attributes(SystemExit(status))
    expected = {"outcome": "finished"} if code is None else {"outcome": "exit", "code": code}
    assert attributes == expected
