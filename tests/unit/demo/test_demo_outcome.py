"""Tests of the evaluation and the report of the demo."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from support.results import case_result

from sentinel.demo.receiver import ReceivedNotification
from sentinel.demo.report import DemoReport
from sentinel.demo.scenario import FAULTS, evaluate_demo
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters

EXPECTED = {fault.cause: fault.step for fault in FAULTS}
COLLAPSE, TWICE = EXPECTED


def received(
    cause: str, step: int, reason: str = "opened", case: str = "", **more
) -> ReceivedNotification:
    """A notification of the case that is named for its cause, or for `case`."""
    known = {"summary": "It is so.", "remedy": "Do this.", "evidence": {}, "seconds": 0.1} | more
    lead = case or cause
    return ReceivedNotification(
        reason, f"demo/{lead}#1", lead, "critical", step, step, cause=cause, **known
    )


def as_expected() -> list[ReceivedNotification]:
    return [received(cause, step + 10) for cause, step in EXPECTED.items()]


def test_the_demo_passes_if_each_fault_is_reported_once():
    outcome = evaluate_demo(as_expected(), {})

    assert outcome.passed
    assert outcome.detected.keys() == EXPECTED.keys()


@pytest.mark.parametrize("cause", EXPECTED)
def test_the_demo_fails_if_a_fault_is_not_reported(cause):
    outcome = evaluate_demo(
        (notification for notification in as_expected() if notification.cause != cause), {}
    )

    assert outcome.missing == (cause,)
    assert not outcome.passed


@pytest.mark.parametrize(
    "notification",
    [
        received("", 500, case="loss_plateau"),
        received("slow_data", 500, case="data_stall"),
        received(COLLAPSE, EXPECTED[COLLAPSE] - 1, case="kl_blowup"),
        received(COLLAPSE, EXPECTED[COLLAPSE] + 50, case="entropy_collapse"),
        received("", EXPECTED[COLLAPSE] + 50, case="reward_collapse"),
    ],
    ids=[
        "no cause",
        "a fault that was not injected",
        "before its fault",
        "a consequence with the cause",
        "a consequence without a cause",
    ],
)
def test_the_demo_fails_on_an_unexpected_notification(notification):
    outcome = evaluate_demo(
        sorted([*as_expected(), notification], key=lambda notification: notification.step), {}
    )

    assert len(outcome.unexpected) == 1
    assert not outcome.passed


def test_updates_of_a_case_are_not_new_cases():
    later = [received(COLLAPSE, 600, "escalated"), received(COLLAPSE, 700, "resolved")]

    assert evaluate_demo([*as_expected(), *later], {}).passed


def test_the_final_cause_of_a_case_counts():
    """A case may open without a cause, or with an earlier one."""
    first = received("", 431, case="kl_blowup")
    worse = received(COLLAPSE, 470, "escalated", case="kl_blowup")
    others = [notification for notification in as_expected() if notification.cause != COLLAPSE]

    assert not evaluate_demo([first, *others], {}).passed
    assert evaluate_demo([first, worse, *others], {}).detected[COLLAPSE] == first
    assert evaluate_demo([first, *others], {first.case: COLLAPSE}).passed, (
        "no notification has the cause"
    )
    assert evaluate_demo(
        [replace(first, cause="weak_kl_term"), worse, *others], {first.case: ""}
    ).passed


def shown(notification: ReceivedNotification) -> str:
    console = Console(file=io.StringIO(), width=100)
    DemoReport(console=console).show_notification(notification)
    return console.file.getvalue()


def test_a_panel_shows_cause_evidence_and_remedy():
    more = {
        "title": "policy [red]collapse",
        "confidence_text": "likely, 83 %",
        "others": ("b", "c"),
    }
    text = shown(
        received(
            COLLAPSE, 500, cause_evidence=("since step 3: KL is 2.",), last_good_step=420, **more
        )
    )

    assert "CRITICAL opened: policy [red]collapse" in text
    assert "opened at step 500. The cause is likely, 83 %." in text
    assert "• since step 3: KL is 2." in text
    assert "Last checkpoint before the onset: step 420." in text
    assert "What to do: Do this." in text
    assert "then b, c." in text
    assert "It is so." in shown(received("", 500, case="a"))


def test_a_changed_cause_is_shown_once():
    exposition = Exposition(Counters(), {})
    exposition.update(case_result())
    console = Console(file=io.StringIO(), width=100)
    report = DemoReport(console=console)
    (case,) = exposition.state()["cases"]

    report.show_progress({"cases": [case]})
    report.show_notification(replace(received("", 500), case=case["name"]))
    report.show_progress({"cases": [case]})
    assert "New cause" not in console.file.getvalue(), "its notification is still to come"

    report.show_notification(replace(received("weak_kl_term", 500), case=case["name"]))
    report.show_progress({"cases": [case]})
    report.show_progress({"cases": [case]})
    text = console.file.getvalue()
    assert text.count("New cause: policy collapse (likely, 83 %)") == 1
    assert "• since step 86: KL is 2 nats." in text
    assert "What to do: Go back." in text
    assert "Last checkpoint before the onset: step 80." in text
