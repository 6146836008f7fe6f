"""Status: what a run's agent says, in the few lines that a person reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.results import DIAGNOSIS, RUN, case_result, make_incident, incident_result

from sentinel.cli.status import _format_run, _to_dict
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Finding, Severity


def lines(*verdicts):
    shown = Exposition(Counters(), {}, run=RUN)
    for verdict in verdicts:
        shown.update(verdict)
    served = SimpleNamespace(run=RUN, url="http://here", state=shown.state(), trouble="", remedy="")
    return list(_format_run(_to_dict(served)))[1:]


def test_a_case_is_told_by_its_cause_with_its_incidents_beneath():
    cause = "policy collapse (likely, 83 %), since step 86; last checkpoint before: step 80"

    assert lines(case_result()) == [
        f"  critical: {cause}",
        "    what to do: Go back.",
        "    critical: KL is 2 nats.",
        "    warning: KL is 2 nats.",
    ]


def test_without_a_cause_incidents_are_told_one_by_one():
    assert lines(case_result(diagnosis=None), incident_result(of=make_incident("gpu_fault", Severity.INFO))) == [
        "  critical: KL is 2 nats.",
        "  warning: KL is 2 nats.",
        "  info: KL is 2 nats.",
    ]


def test_an_agent_of_before_there_were_cases_is_understood():
    state = {"state": "running", "step": 3, "incidents": [{"severity": "info", "summary": "It."}]}
    served = SimpleNamespace(run=RUN, url="http://here", state=state, trouble="", remedy="")

    assert list(_format_run(_to_dict(served)))[1:] == ["  info: It."]


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eevil", "\r\x00"])
def test_no_text_moves_the_cursor(text):
    of = replace(make_incident(), finding=Finding(text, {}))
    told = "".join(lines(case_result(of=[of], diagnosis=replace(DIAGNOSIS, title=text, remedy=text))))

    assert told.isprintable()
