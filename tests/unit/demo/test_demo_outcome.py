"""The demo's verdict is strict, and a person reads what each mistake was put down to."""

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


def told(
    cause: str, step: int, reason: str = "opened", case: str = "", **more
) -> ReceivedNotification:
    """A page of the case that is named for its cause, or for `case`."""
    known = {"summary": "It is so.", "remedy": "Do this.", "evidence": {}, "seconds": 0.1} | more
    lead = case or cause
    return ReceivedNotification(
        reason, f"demo/{lead}#1", lead, "critical", step, step, cause=cause, **known
    )


def as_expected() -> list[ReceivedNotification]:
    return [told(cause, step + 10) for cause, step in EXPECTED.items()]


def test_the_demo_passes_if_each_fault_is_reported_once():
    outcome = evaluate_demo(as_expected(), {})

    assert outcome.passed
    assert outcome.detected.keys() == EXPECTED.keys()


@pytest.mark.parametrize("cause", EXPECTED)
def test_the_demo_fails_if_a_fault_is_not_reported(cause):
    outcome = evaluate_demo((page for page in as_expected() if page.cause != cause), {})

    assert outcome.missing == (cause,)
    assert not outcome.passed


@pytest.mark.parametrize(
    "page",
    [
        told("", 500, case="loss_plateau"),
        told("slow_data", 500, case="data_stall"),
        told(COLLAPSE, EXPECTED[COLLAPSE] - 1, case="kl_blowup"),
        told(COLLAPSE, EXPECTED[COLLAPSE] + 50, case="entropy_collapse"),
        told("", EXPECTED[COLLAPSE] + 50, case="reward_collapse"),
    ],
    ids=[
        "of nothing that has a name",
        "of what is not wrong",
        "before its mistake",
        "of what follows from a mistake",
        "of what follows, without a name",
    ],
)
def test_the_demo_fails_on_an_unexpected_notification(page):
    outcome = evaluate_demo(sorted([*as_expected(), page], key=lambda page: page.step), {})

    assert len(outcome.unexpected) == 1
    assert not outcome.passed


def test_updates_of_a_case_are_not_new_cases():
    later = [told(COLLAPSE, 600, "escalated"), told(COLLAPSE, 700, "resolved")]

    assert evaluate_demo([*as_expected(), *later], {}).passed


def test_the_final_cause_of_a_case_counts():
    """It may open without a name, or by that of an earlier stage."""
    first = told("", 431, case="kl_blowup")
    worse = told(COLLAPSE, 470, "escalated", case="kl_blowup")
    others = [page for page in as_expected() if page.cause != COLLAPSE]

    assert not evaluate_demo([first, *others], {}).passed
    assert evaluate_demo([first, worse, *others], {}).detected[COLLAPSE] == first
    assert evaluate_demo([first, *others], {first.case: COLLAPSE}).passed, "no page told of it"
    assert evaluate_demo(
        [replace(first, cause="weak_kl_term"), worse, *others], {first.case: ""}
    ).passed


def shown(page: ReceivedNotification) -> str:
    console = Console(file=io.StringIO(), width=100)
    DemoReport(console=console).show_notification(page)
    return console.file.getvalue()


def test_a_panel_shows_cause_evidence_and_remedy():
    more = {
        "title": "policy [red]collapse",
        "confidence_text": "likely, 83 %",
        "others": ("b", "c"),
    }
    text = shown(
        told(COLLAPSE, 500, cause_evidence=("since step 3: KL is 2.",), last_good_step=420, **more)
    )

    assert "CRITICAL: policy [red]collapse opened (likely, 83 %)" in text
    assert "• since step 3: KL is 2." in text
    assert "Last checkpoint before the onset: step 420." in text
    assert "What to do: Do this." in text
    assert "then b, c." in text
    assert "It is so." in shown(told("", 500, case="a"))


def test_a_changed_cause_is_shown_once():
    told_of = Exposition(Counters(), {})
    told_of.update(case_result())
    console = Console(file=io.StringIO(), width=100)
    telling = DemoReport(console=console)
    (case,) = told_of.state()["cases"]

    telling.show_progress({"cases": [case]})
    telling.show_notification(replace(told("", 500), case=case["name"]))
    telling.show_progress({"cases": [case]})
    assert "New cause" not in console.file.getvalue(), "its page is still to come"

    telling.show_notification(replace(told("weak_kl_term", 500), case=case["name"]))
    telling.show_progress({"cases": [case]})
    telling.show_progress({"cases": [case]})
    text = console.file.getvalue()
    assert text.count("New cause: policy collapse (likely, 83 %)") == 1
    assert "• since step 86: KL is 2 nats." in text
    assert "What to do: Go back." in text
    assert "Last checkpoint before the onset: step 80." in text
