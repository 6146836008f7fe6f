"""`sentinel status`: the text about a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.expositions import make_exposition
from support.results import (
    DIAGNOSIS,
    NOW,
    RUN,
    case_result,
    incident_result,
    make_incident,
    step_result,
)

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cli.status import _format_run, _to_dict
from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import IncidentState
from sentinel.model.message import build_message
from sentinel.model.notification import RunContext
from sentinel.store.silences import Acknowledgement, Suppression


def lines(*results):
    return text_of(make_exposition(*results, run=RUN, clock=lambda: NOW + 1200))


def text_of(exposition):
    """The output about the run without its first line."""
    found = DiscoveredRun(RUN, "http://here", exposition.state())
    return list(_format_run(_to_dict(found)))[1:]


def test_a_case_has_the_text_of_its_notification_and_the_names_of_its_detectors():
    """The names are arguments of `sentinel ack` and `silence`."""
    result = case_result()
    message = build_message(*result.case_notifications, NOW + 1200, is_dated=True)

    assert "20 min ago" in message.since
    assert lines(result) == [
        f"  CRITICAL: {message.subject}",
        f"    {message.since}",
        "    - Step 86: KL is 2 nats.",
        "    - The KL coefficient is 0.0001.",
        "    What to do: Go back.",
        "    Last good checkpoint: step 80",
        *(f"    Also: {text}" for text in message.also),
        "    Case: grpo-7b/kl_blowup#1",
        "    Detectors: kl_blowup, reward_collapse",
    ]


def test_a_case_states_its_newest_values_with_their_step():
    """The finding is of when it opened; an on-call engineer reads it hours later."""
    exposition = make_exposition(case_result(), run=RUN)
    exposition.update(step_result(step=1250, kl_ref=18e6))

    assert "    Now, at step 1,250: KL to the reference 18,000,000 nats." in text_of(exposition)


def test_a_case_has_the_onset_of_its_incident():
    incident = replace(
        make_incident(), onset_step=82, onset_range=(80, 84), opened_step=100, last_good_step=60
    )
    shown = "\n".join(text_of(make_exposition(case_result(of=[incident], diagnosis=None), run=RUN)))

    assert "Since step 82; found at step 100" in shown
    assert "Last good checkpoint: step 60" in shown
    assert (
        "kl_blowup (began at step 82, between 80 and 84; last checkpoint before: step 60)" in shown
    )


def test_incidents_of_a_case_that_are_over_are_counted():
    result = case_result()
    exposition = make_exposition(result, run=RUN)
    over = replace(result.notifications[1].incident, state=IncidentState.RESOLVED)
    exposition.update(replace(step_result(step=120), changed_incidents=(over,)))

    assert text_of(exposition)[-1] == "    Detectors: kl_blowup; 1 more of this case is over"


def test_ranks_acknowledgements_and_checkpoint_paths_are_shown():
    of_rank = replace(make_incident(), finding=Finding("KL is 2 nats.", rank=3), last_good_step=80)
    result = case_result(of=[of_rank], diagnosis=None)
    (case,) = result.case_notifications
    context = RunContext(checkpoint_path="/runs/checkpoint-80")
    exposition = make_exposition(
        replace(result, case_notifications=(replace(case, context=context),)), run=RUN
    )
    ack = Acknowledgement(of_rank.name, Severity.CRITICAL, NOW, "ana", "looking at it")
    exposition.set_suppression(Suppression(acks={of_rank.name: ack}))
    shown = text_of(exposition)

    assert "    Last good checkpoint: step 80, /runs/checkpoint-80" in shown
    assert "    Ranks: 3" in shown
    assert shown[-1].endswith("acknowledged by ana: looking at it)")


def test_the_most_severe_case_is_first_and_incidents_without_a_case_are_last():
    warning = case_result(of=[make_incident("loss_plateau", Severity.WARNING)], diagnosis=None)
    info = incident_result(of=make_incident("gpu_fault", Severity.INFO))
    shown = lines(warning, info, case_result())

    headings = [line.strip() for line in shown if not line.startswith("    ")]
    assert [each.partition(":")[0] for each in headings] == [
        "CRITICAL",
        "WARNING",
        "info gpu_fault",
    ]


def test_what_receivers_do_not_accept_is_shown():
    exposition = make_exposition(run=RUN, clock=lambda: NOW + 90)
    exposition.set_delivery_problems([DeliveryProblem("slack", 2, 0, "HTTP 404", NOW)])

    assert text_of(exposition) == [
        (
            "  Sink slack fails since 2023-11-14 22:13:20 UTC (HTTP 404): "
            "2 notifications rejected. Correct its settings, restart the agent, and test it with "
            "`sentinel notify test --sink slack`."
        )
    ]


def test_a_state_without_cases_is_supported():
    state = {"state": "running", "step": 3, "incidents": [{"severity": "info", "summary": "It."}]}
    found = DiscoveredRun(RUN, "http://here", state)

    assert list(_format_run(_to_dict(found)))[1:] == ["  info: It."]


@pytest.mark.fault("X9")
@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eevil", "\r\x00"])
def test_unprintable_characters_are_escaped(text):
    incident = replace(make_incident(), finding=Finding(text, {}))
    output = "".join(
        lines(case_result(of=[incident], diagnosis=replace(DIAGNOSIS, title=text, remedy=text)))
    )

    assert output.isprintable()
