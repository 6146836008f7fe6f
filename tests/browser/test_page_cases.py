"""The cases of a run on its web page, and the banner of undelivered notifications."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect
from support.expositions import make_exposition
from support.results import NOW, RUN, case_result, make_incident, make_result, step_result

from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.model.record import Event
from sentinel.store.cases import case_with_message

pytestmark = pytest.mark.timeout(600)


def test_cases_have_the_text_of_their_notification(show):
    """With cause, onset, facts, ranks, remedy and checkpoint; the most severe comes first."""
    on_rank = replace(
        make_incident("nan_or_inf", Severity.WARNING),
        finding=Finding("The <b>loss</b> is NaN on rank 3. It was 2.1.", rank=3),
    )
    collapse = case_result()
    (case,) = collapse.case_notifications
    context = RunContext(checkpoint_path="/runs/checkpoint-80")
    exposition = make_exposition(
        case_result(of=[on_rank], diagnosis=None),
        replace(collapse, case_notifications=(replace(case, context=context),)),
        step_result(step=1250, kl_ref=18e6),
        clock=lambda: NOW + 720,
    )
    state = exposition.state()
    page = show(state)
    cards = page.locator("article.case")
    text = " ".join(page.locator("#page").text_content().split())
    messages = [case["message"] for case in state["cases"]]

    assert [each.split()[-1] for each in attributes(cards, "class")] == ["critical", "warning"]
    assert "12 min ago" in messages[0]["since"]
    for message in messages:
        parts = "subject", "since", "checkpoint", "remedy"
        for expected in (*(message[part] for part in parts), *message["also"]):
            assert expected in text
    assert "Last good checkpoint: step 80, /runs/checkpoint-80" in text
    now = "Now, at step 1,250: KL to the reference 18,000,000 nats."
    expect(cards.first.locator(".now")).to_have_text(now)
    expect(page.locator(".verdict")).to_contain_text(now)
    for expected in ("<b>loss</b> is NaN on rank 3", "It was 2.1."):
        assert expected in text
    expect(cards.first.locator(".evidence li")).to_have_text(
        ["step 86KL is 2 nats.", "overallThe KL coefficient is 0.0001."]
    )
    assert attributes(page.locator(".actions a"), "href") == [
        "../../runbooks/policy_collapse",
        "../../runbooks/nan_or_inf",
    ]
    assert page.title() == f"‼ {RUN}: running"
    expect(page.locator(".verdict")).to_contain_text(messages[0]["subject"])
    expect(page.locator(".banners")).to_be_hidden()
    expect(page.get_by_text("The agent does not answer")).to_have_count(0)


def test_a_change_of_a_case_leaves_what_is_selected_and_focused(show):
    state = make_exposition(case_result(), clock=lambda: NOW + 90).state()
    page = show(state)
    remedy = page.locator("article.case .remedy p")
    remedy.evaluate("(node) => getSelection().selectAllChildren(node)")
    page.locator("article.case .actions a").focus()

    state["cases"][0]["message"]["facts"] = []
    state["cases"][0]["message"]["notes"] = ["A later note."]
    state["cases"][0]["severity"] = "warning"

    expect(page.get_by_text("A later note.")).to_be_visible()
    expect(page.locator("article.case")).to_have_class("card case warning")
    assert page.evaluate("getSelection().toString()") == remedy.inner_text()
    expect(page.locator("article.case .actions a")).to_be_focused()


def test_cases_that_fired_when_their_training_ended_count_but_not_as_open_at_the_end(show):
    """Folds of a run: two ended damaged, another problem ended with a stage."""
    ends = [Resolution.TRAINING_FINISHED] * 2 + [Resolution.STAGE_FINISHED]
    cases = []
    for number, end in enumerate(ends, 1):
        incident = make_incident(episode=number)
        incident.resolve(end, 120, NOW + 60)
        result = case_result(NotificationReason.RESOLVED, of=[incident], diagnosis=None)
        cases.append(case_with_message(result.case_notifications[0], NOW + 90))
    stop = make_result(Event.STOP, 900, attributes={"outcome": "finished"})
    state = make_exposition(stop, clock=lambda: NOW + 90).state()
    page = show(state, cases=lambda *_, **__: cases)

    expect(page.locator("#section-cases .note")).to_have_text("2 open when their training ended")
    expect(page.locator("article.case")).to_have_count(2)
    expect(page.locator(".verdict.critical")).to_contain_text(
        "It lasted until the training finished. 1 other case did, too."
    )
    expect(page.locator("details.resolved")).to_have_count(1)
    expect(page.locator("details.resolved")).to_contain_text("another stage began")


def test_times_are_in_utc(show):
    state = make_exposition(case_result(), clock=lambda: NOW + 90).state()
    page = show(state)

    times = page.locator(".tiles small").filter(has_text=":")

    expect(times.first).to_contain_text("UTC")
    assert all("UTC" in text for text in times.all_text_contents())


def test_a_receiver_that_rejects_notifications_is_a_banner(show):
    exposition = make_exposition(case_result(), clock=lambda: NOW + 90)
    exposition.set_delivery_problems([DeliveryProblem("<slack>", 2, 1, "HTTP 404", NOW)])
    page = show(exposition.state())

    expect(page.get_by_role("alert").locator(".banner.critical")).to_have_text(
        "Sink <slack> fails since 2023-11-14 22:13:20 UTC (HTTP 404): "
        "2 notifications rejected, "
        "1 waiting. Correct its settings, restart the agent, and test it with "
        "sentinel notify test --sink <slack>."
    )


def attributes(elements, name):
    """The values of that attribute."""
    return elements.evaluate_all(
        "(nodes, name) => nodes.map((each) => each.getAttribute(name))", name
    )


def test_a_run_past_its_planned_end_has_no_time_left(show):
    """The step counter may count twice, as in huggingface/trl#2124."""
    start = make_result(Event.START, rank=0, values={"max_steps": 600.0})
    exposition = make_exposition(start, step_result(step=634, step_time=2.0))
    page = show(exposition.state())

    tile = page.locator(".tile", has_text="Time left")
    expect(tile.locator("span")).to_have_text("none")
    expect(tile.locator("small")).to_have_text("34 steps past the planned end")


def test_the_job_of_slurm_is_named_with_its_nodes(show):
    job = {"slurm/job_id": "4711", "slurm/partition": "gpu", "slurm/node_list": "gpu[1-2]"}
    start = make_result(Event.START, rank=0, attributes=job)
    page = show(make_exposition(start, step_result(step=1)).state())

    tile = page.locator(".tile", has_text="Slurm job")
    expect(tile.locator("span")).to_have_text("4711")
    expect(tile.locator("small")).to_have_text("gpu, gpu[1-2]")
