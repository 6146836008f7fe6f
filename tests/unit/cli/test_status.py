"""`sentinel status`: the text about a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.results import DIAGNOSIS, RUN, case_result, incident_result, make_incident

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cli.status import _format_run, _to_dict
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Finding, Severity


def lines(*results):
    exposition = Exposition(Counters(), {}, run=RUN)
    for result in results:
        exposition.update(result)
    found = DiscoveredRun(RUN, "http://here", exposition.state())
    return list(_format_run(_to_dict(found)))[1:]


def test_a_case_has_its_cause_remedy_and_incidents():
    cause = "policy collapse (likely, 83 %), since step 86; last checkpoint before: step 80"

    assert lines(case_result()) == [
        f"  critical: {cause}",
        "    remedy: Go back.",
        "    critical kl_blowup: KL is 2 nats.",
        "    warning reward_collapse: KL is 2 nats.",
    ]


def test_without_a_cause_every_incident_has_a_line():
    assert lines(
        case_result(diagnosis=None), incident_result(of=make_incident("gpu_fault", Severity.INFO))
    ) == [
        "  critical kl_blowup: KL is 2 nats.",
        "  warning reward_collapse: KL is 2 nats.",
        "  info gpu_fault: KL is 2 nats.",
    ]


def test_a_state_without_cases_is_supported():
    state = {"state": "running", "step": 3, "incidents": [{"severity": "info", "summary": "It."}]}
    found = DiscoveredRun(RUN, "http://here", state)

    assert list(_format_run(_to_dict(found)))[1:] == ["  info: It."]


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eevil", "\r\x00"])
def test_unprintable_characters_are_escaped(text):
    incident = replace(make_incident(), finding=Finding(text, {}))
    output = "".join(
        lines(case_result(of=[incident], diagnosis=replace(DIAGNOSIS, title=text, remedy=text)))
    )

    assert output.isprintable()
