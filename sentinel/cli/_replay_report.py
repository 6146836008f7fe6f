"""What a replay found: JSON lines for programs, sentences and tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from json import dumps
from typing import Any

from sentinel.cli._sparkline import Curve
from sentinel.model.checkpoint_clause import fit_checkpoint_clause
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.evidence_text import capitalized
from sentinel.model.json_safe import json_safe
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import Result
from sentinel.pipeline.replay import ReplayedIncident, ReplayResult
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.coverage import coverage_text


@dataclass
class Curves:
    """The curves of the run's signals, collected while it is replayed."""

    by_signal: dict[str, Curve] = field(default_factory=dict)

    def update(self, result: Result) -> None:
        """Add the values of a step of the whole run."""
        record = result.record
        if record.rank != WHOLE_RUN or record.event not in (Event.STEP, Event.EVAL):
            return
        for name in SIGNALS.keys() & record.values.keys():
            if name not in self.by_signal:
                self.by_signal[name] = Curve()
            self.by_signal[name].add(record.step, record.values[name])


def print_json(result: ReplayResult, run: str = "") -> None:
    """One line per incident, one per case with a cause or possible causes, and a summary.

    If several runs are replayed, each line has the name of its `run`.
    """
    name = {"run": run} if run else {}
    for replayed in result.incidents:
        print(dumps(_incident_json(replayed) | name, allow_nan=False))
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            body = _diagnosis_json(result, case, case.diagnosis)
            print(dumps(body | name, allow_nan=False))
    for case in result.cases:
        if case.possible_causes:
            causes = [asdict(each) for each in case.possible_causes]
            body = {"type": "possible_causes", "case": case.incident.name, "causes": causes}
            print(dumps(body | name, allow_nan=False))
    counts = {
        "records": result.records,
        "skipped": result.skipped,
        "steps": result.steps,
        "incidents": len(result.incidents),
        "monitored": result.coverage.monitored,
        "unmonitored": [each._asdict() for each in result.coverage.unmonitored],
    }
    failed = {"failed": result.failed_detectors} if result.failed_detectors else {}
    print(dumps({"type": "summary", **counts, **failed, **name}))


def _incident_json(replayed: ReplayedIncident) -> dict[str, Any]:
    incident, finding = replayed.incident, replayed.notification.incident.finding
    rank = finding.rank if finding.rank is not None else incident.key.rank
    return {
        "type": "incident",
        "detector": incident.key.detector,
        "severity": incident.severity.value,
        "signal": incident.signal,
        "onset_step": incident.onset_step,
        "opened_step": incident.opened_step,
        "resolved_step": incident.resolved_step,
        "rank": None if rank == WHOLE_RUN else rank,
        "episode": incident.episode,
        "flaps": incident.flaps,
        "last_good_step": incident.last_good_step,
        "onset": incident.onset_to_dict(),
        "summary": finding.summary,
        "evidence": json_safe(finding.evidence),
        "remedy": fit_checkpoint_clause(incident.remedy, incident.last_good_step),
        "case": replayed.case_name,
    }


def _diagnosis_json(
    result: ReplayResult, case: Notification, diagnosis: Diagnosis
) -> dict[str, Any]:
    return {
        "type": "diagnosis",
        "case": case.incident.name,
        "cause": diagnosis.cause,
        "title": diagnosis.title,
        "confidence": diagnosis.confidence,
        "severity": case.incident.severity.value,
        "onset_step": case.onset_step,
        "opened_step": case.incident.opened_step,
        "resolved_step": result.resolved_step(case),
        "incidents": [incident.name for incident in result.incidents_in(case)],
        "evidence": [each.to_dict() for each in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": case.last_good_step,
    }


def print_tables(result: ReplayResult, curves: Mapping[str, Curve], run: str = "") -> None:
    """Cases, incidents with the curves of their signals, remedies, and what is not monitored.

    If several runs are replayed, below the name of the `run`.
    """
    if run:
        from sentinel.cli._replay_tables import print_heading

        print_heading(run)
    if result.incidents:
        # A log without incidents needs no tables.
        from sentinel.cli._replay_tables import print_incidents

        print_incidents(result, curves)
    else:
        limit = " in what is monitored" if coverage_sentence(result) else ""
        print(f"No incident{limit} in {result.steps} steps.")
    if text := coverage_sentence(result):
        print(f"{capitalized(text)}.")
    if result.skipped:
        subject = "1 line" if result.skipped == 1 else f"{result.skipped} lines"
        was = "was" if result.skipped == 1 else "were"
        print(f"{subject} could not be read and {was} skipped.")


def coverage_sentence(result: ReplayResult) -> str:
    """What of the log is not monitored; mostly empty."""
    return coverage_text(result.coverage.is_blind, result.coverage.unmonitored)
