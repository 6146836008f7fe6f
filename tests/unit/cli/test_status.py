"""`sentinel status`: the text about a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.expositions import make_exposition
from support.results import DIAGNOSIS, NOW, RUN, case_result, incident_result, make_incident

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cli.status import _format_run, _to_dict
from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Finding, Severity
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
    message = build_message(*result.case_notifications, NOW + 1200)

    assert "20 min ago" in message.since
    assert lines(result) == [
        f"  CRITICAL: {message.subject}",
        f"    {message.since}",
        "    - Step 86: KL is 2 nats.",
        "    - The KL coefficient is 0.0001.",
        "    What to do: Go back.",
        "    Last good checkpoint: step 80",
        *(f"    Also: {text}" for text in message.also),
        "    Detectors: kl_blowup, reward_collapse",
    ]


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
