"""The cases of a run on its web page, and the banner of undelivered notifications."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from support.expositions import make_exposition
from support.results import NOW, case_result, make_incident

from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Finding, Severity
from sentinel.model.notification import RunContext

pytestmark = pytest.mark.timeout(600)


def texts_of(page):
    """The visible text of a page, and that of its elements with the role alert."""
    body = re.sub(r"<(script|style|noscript).*?</\1>", "", page, flags=re.DOTALL)
    text = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))
    alerts = re.findall(r'<div id="deliveries"[^>]*>(.*?)</div>', page, re.DOTALL)
    return text, [html.unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in alerts]


def test_cases_have_the_text_of_their_notification(render):
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
        clock=lambda: NOW + 720,
    )
    state = exposition.state()
    text, _ = texts_of(page := render(state))
    cards = re.findall(r'<article class="card case (\w+)">', page)
    messages = [case["message"] for case in state["cases"]]

    assert cards == ["critical", "warning"]
    assert "12 min ago" in messages[0]["since"]
    for message in messages:
        parts = "subject", "since", "checkpoint", "remedy"
        for expected in (*(message[part] for part in parts), *message["also"]):
            assert expected in text
    assert "Last good checkpoint: step 80, /runs/checkpoint-80" in text
    for expected in ("step 86 KL is 2 nats.", "<b>loss</b> is NaN on rank 3", "It was 2.1."):
        assert expected in text
    assert re.findall(r'href="(runbooks/\w+)"', page) == [
        "runbooks/policy_collapse",
        "runbooks/nan_or_inf",
    ]
    assert 'id="deliveries" class="banner" role="alert" hidden' in page
    assert "The agent does not answer" not in text


def test_a_receiver_that_rejects_notifications_is_a_banner(render):
    exposition = make_exposition(case_result(), clock=lambda: NOW + 90)
    exposition.set_delivery_problems([DeliveryProblem("<slack>", 2, 1, "HTTP 404", NOW)])
    page = render(exposition.state())

    assert texts_of(page)[1] == [
        (
            "Sink <slack> fails since 2023-11-14 22:13:20 UTC (HTTP 404): "
            "2 notifications rejected, "
            "1 waiting. Correct its settings, restart the agent, and test it with "
            "sentinel notify test --sink <slack>."
        )
    ]
    assert not re.search(r'id="deliveries"[^>]*hidden', page)
