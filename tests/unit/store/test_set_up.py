"""The set-up of a run: what its checks reported, and facts of its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from sentinel.config import plugins
from sentinel.detectors._training_check import ReportedCheck
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState, Resolution
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.set_up import read_set_up


@pytest.fixture
def history(tmp_path):
    found = History(connect(tmp_path / "sentinel.db"))
    start(found, Event.START, 1.0)
    return found


def start(history, event, time):
    """The start of an attempt or training."""
    facts = {"framework": "torch", "torch": "2.9", "pid": "7"}
    add(history, event, 0, time, world_size=2.0, **facts)


def add(history, event, step, time, **evidence):
    values = {key: each for key, each in evidence.items() if isinstance(each, float)}
    texts = {key: each for key, each in evidence.items() if isinstance(each, str)}
    # As from an aligner: the record of the rank, then that of the run.
    for rank in (int(values.get("rank", 0)), WHOLE_RUN):
        history.update(Result(Record("run", rank, step, time, event, values, texts)))


def report(history, check, step, *, rank=0.0, problem="", time=2.0, **evidence):
    add(history, Event.CHECK, step, time, check=check, problem=problem, rank=rank, **evidence)


def compare(history, check, step, *, rank, **evidence):
    """Evidence of one of two ranks."""
    group = {"first_rank": 0.0, "ranks": 2.0}
    add(history, Event.CHECK, step, 2.0, check=check, rank=rank, **group, **evidence)


def find(history, detector, step, **changes):
    history.store_incident(
        Incident(
            IncidentKey("run", WHOLE_RUN, detector), 1, Severity.CRITICAL, "loss", "Do that.",
            Finding("It is wrong."), 0, step, 2.0, IncidentState.FIRING, **changes,
        )
    )  # fmt: skip


def results(history):
    return {each["check"]: each for each in read_set_up(history.connection)["checks"]}


def test_a_check_is_found_passed_or_not_checked_with_the_reason(history):
    find(history, "gradients_not_cleared", 4)
    report(history, "gradients", 4, problem="not_cleared", updates=3.0)
    report(history, "weights", 8, rank=0.0, weights=6.0)
    report(history, "weights", 9, rank=1.0, weights=6.0)

    found = read_set_up(history.connection)["checks"]

    assert [each["result"] for each in found[:2]] == ["found", "passed"]
    assert {each["result"] for each in found[2:]} == {"not checked"}
    assert found[0] == {
        "check": "gradients",
        "detector": "gradients_not_cleared",
        "result": "found",
        "severity": "critical",
        "step": 4,
        "evidence": "It is wrong.",
        "remedy": "Do that.",
    }
    assert found[1]["evidence"] == "Reported at step 9 by ranks 0-1. Weights: 6."
    assert "two or more ranks" in results(history)["replicas"]["evidence"]


def test_ranks_are_equal_once_all_of_them_were_compared(history):
    compare(history, "replicas", 3, rank=0.0, sums="0a")
    assert results(history)["replicas"]["result"] == "not checked"

    compare(history, "replicas", 3, rank=1.0, sums="0a")
    compare(history, "replicas", 10, rank=1.0, sums="0b")
    assert results(history)["replicas"]["evidence"] == "Reported at step 3 by ranks 0-1."
    # Of evidence, one row for each rank is stored, and not what is compared.
    assert [dict(each.attributes) for each in history.check_records()] == [
        {"check": "replicas"}
    ] * 2


def test_what_is_over_has_passed_and_what_the_end_of_the_run_closed_has_not(history):
    report(history, "mode", 5, problem="evaluation_mode")
    find(history, "evaluation_mode", 5, resolution=Resolution.RUN_STOPPED)
    assert results(history)["mode"]["result"] == "found"

    find(history, "evaluation_mode", 5, resolution=Resolution.CLEARED)
    assert "is disabled" in results(history)["mode"]["evidence"]
    report(history, "mode", 9)
    assert results(history)["mode"]["result"] == "passed"


@pytest.mark.parametrize("event", [Event.START, Event.TRAINING])
def test_the_newest_attempt_and_training_counts(history, event):
    report(history, "mode", 5)
    find(history, "gradients_not_cleared", 4)
    start(history, event, 3.0)

    assert {each["result"] for each in results(history).values()} == {"not checked"}


def test_a_check_that_is_off_is_so_for_a_reason(history):
    state = {"patch/check_mode": "off: KeyError in after_step"}
    history.update(Result(Record("run", 1, 3, 2.0, Event.METADATA, {}, state)))
    assert "KeyError in after_step" in results(history)["mode"]["evidence"]

    history.update(
        Result(Record("run", WHOLE_RUN, 0, 2.0, Event.METADATA, {}, {"monitor/checks": "off"}))
    )
    assert "monitor(checks=False)" in results(history)["weights"]["evidence"]


def test_facts_have_labels_and_what_is_off_is_left_out(history):
    facts = {"bf16": "true", "fp16": "false", "parameter_types": "bfloat16"}
    facts["modules_without_optimizer"] = "`head`, 3% of the elements with gradients"
    counts = {"model_parameters": 2e9, "trained_parameters": 1e8}
    add(history, Event.METADATA, 3, 2.0, **facts, **counts)

    assert [(each["name"], each["value"]) for each in read_set_up(history.connection)["facts"]] == [
        ("Ranks", "2"),
        ("Framework", "torch"),
        ("PyTorch", "2.9"),
        ("Parameters", "2,000,000,000"),
        ("Trained share", "5%"),
        ("Gradients that no optimizer uses", "`head`, 3% of the elements with gradients"),
        ("Parameter types", "bfloat16"),
        ("bfloat16", "true"),
    ]


def test_a_log_has_no_checks(tmp_path):
    assert read_set_up(connect(tmp_path / "log.db")) == {"checks": [], "facts": []}


def test_a_detector_with_a_check_is_all_that_a_further_one_needs(history, monkeypatch):
    @dataclass
    class Tied(ReportedCheck):
        check: ClassVar[str] = "tied"

    monkeypatch.setattr(plugins, "load_classes", lambda _: {"weights_untied": Tied})

    assert results(history)["tied"]["evidence"] == "The check had nothing to judge."
