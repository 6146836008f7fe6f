"""`sentinel replay` with causes: first in the tables, after their incidents in JSON."""

import json

import pytest
from support.replays import (
    REWOUND_ROWS,
    collapse_rows,
    log,
    replay_incidents,
    replay_lines,
    run_replay,
)

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity

__all__ = ["log"]

DIAGNOSIS_KEYS = [
    "type",
    "case",
    "cause",
    "title",
    "confidence",
    "severity",
    "onset_step",
    "opened_step",
    "resolved_step",
    "incidents",
    "evidence",
    "remedy",
    "last_good_step",
]


class Storm:
    """A cause like that of a plug-in."""

    title, severity = "storm in the policy", Severity.CRITICAL
    explains = frozenset({"kl_blowup", "kl_drift", "step_regression"})

    def evidence(self, context):
        yield Evidence(0.3, "The season is [red]autumn[/red].")
        yield from symptom_evidence(context.earliest("step_regression", "kl_blowup"), 0.8)
        if max_steps := context.number("max_steps"):
            yield Evidence(0.1, f"max_steps is {max_steps:g}.")

    def remedy(self, _):
        return "Stay in."


@pytest.fixture
def storm(monkeypatch):
    monkeypatch.setattr("sentinel.pipeline.pipeline.build_causes", lambda: {"storm": Storm()})


def test_a_diagnosis_is_a_line_after_those_of_its_incidents(log, storm):
    *lines, diagnosis, summary = replay_lines(log(collapse_rows()))
    incidents = [line for line in lines if line["case"] == diagnosis["case"]]

    assert [line["type"] for line in lines] == ["incident"] * summary["incidents"]
    assert list(diagnosis) == DIAGNOSIS_KEYS
    assert (diagnosis["type"], diagnosis["cause"]) == ("diagnosis", "storm")
    assert (diagnosis["title"], diagnosis["severity"]) == ("storm in the policy", "critical")
    assert diagnosis["confidence"] == pytest.approx(0.86)
    assert [each["step"] for each in diagnosis["evidence"]] == [diagnosis["onset_step"], None]
    assert diagnosis["incidents"][0] == diagnosis["case"] == "run/kl_blowup#1"
    assert len(diagnosis["incidents"]) == len(incidents)
    assert diagnosis["opened_step"] == incidents[0]["opened_step"]
    assert (diagnosis["remedy"], diagnosis["resolved_step"]) == ("Stay in.", None)


def test_a_case_resolves_with_the_last_of_its_incidents(log, storm):
    rows = [*collapse_rows(), *({"step": n, "kl": 0.02} for n in range(331, 600))]
    *lines, diagnosis, _ = replay_lines(log(rows))
    ends = [line["resolved_step"] for line in lines if line["case"] == diagnosis["case"]]

    assert diagnosis["resolved_step"] == max(ends)


def test_an_incident_of_severity_info_has_no_case(log):
    incidents, _ = replay_incidents(
        log({"step": s, "grad_norm": "NaN" if s == 21 else 1.0} for s in range(40))
    )

    assert [(i["severity"], i["case"]) for i in incidents] == [("info", None)]


def test_fail_on_includes_the_severity_of_a_cause(log, storm):
    assert replay_incidents(log(REWOUND_ROWS))[0][0]["severity"] == "warning"
    assert run_replay(log(REWOUND_ROWS), "--fail-on", "critical").exit_code == 3


def test_the_tables_show_the_cause_first_and_its_remedy_only(log, storm):
    output = " ".join(run_replay(log(collapse_rows())).stdout.split())

    assert "critical: storm in the policy (likely, 86 %)" in output
    assert "The season is [red]autumn[/red]." in output
    assert output.index("What to do: Stay in.") < output.index("Detected")
    assert "checkpoint before the onset" not in output, "the remedy of the detector"


def test_a_case_without_a_cause_has_those_that_fit(log, monkeypatch):
    class Calm(Storm):
        title, sign = "calm", "the air does not move"

        def evidence(self, context):
            yield from symptom_evidence(context.earliest("kl_blowup"), 0.4)

    monkeypatch.setattr("sentinel.pipeline.pipeline.build_causes", lambda: {"calm": Calm()})
    *_, possible, _ = replay_lines(log(collapse_rows()))
    output = " ".join(run_replay(log(collapse_rows())).stdout.split())

    assert possible == {
        "type": "possible_causes",
        "case": "run/kl_blowup#1",
        "causes": [
            {"cause": "calm", "title": "calm", "confidence": 0.4, "sign": "the air does not move"}
        ],
    }
    assert "kl_blowup: Possible cause: calm (40 %)." in output
    assert "Calm is confirmed if the air does not move." in output


def test_the_settings_in_a_log_are_evidence(tmp_path, storm):
    path = tmp_path / "trainer_state.json"
    path.write_text(
        json.dumps({"log_history": collapse_rows(), "max_steps": 4000, "save_steps": 500})
    )
    *_, diagnosis, _ = replay_lines(path)

    assert "max_steps is 4000." in [each["text"] for each in diagnosis["evidence"]]
