"""The dates of incidents and cases in every place where a person, or Prometheus, reads them.

The records of a run go through the processor of an agent, which gets the estimates some records
later, as from its process. Places: the stored incidents and cases, the open cases of the pipeline,
`/api/run`, the lines of `sentinel status`, `/metrics`, the queued notifications with the bodies of
Slack and the webhook, the report, and a replay of the same records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sentinel.agent.discovery import DiscoveredRun
from sentinel.agent.processor import RunProcessor
from sentinel.cli.status import _format_run, _to_dict
from sentinel.config.settings import load_settings
from sentinel.metrics.stored_state import stored_state
from sentinel.model.counters import Counters
from sentinel.model.incident import Onset
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline import pipeline
from sentinel.pipeline.onset import estimate_onset
from sentinel.pipeline.onset_request import OnsetRequest
from sentinel.pipeline.replay import replay_records
from sentinel.report.comparison import ComparedRun
from sentinel.report.markdown import markdown_report
from sentinel.report.run_report import collect_report
from sentinel.signals.hardware import NodeMeasurements
from sentinel.sinks.slack import Slack
from sentinel.sinks.webhook import Webhook
from sentinel.store import notification_codec
from sentinel.store.database import connect
from sentinel.store.run_reader import RunReader

Dates = tuple[int, int | None]
"""The step of an onset, and of the last checkpoint before it."""

LAG_RECORDS = 5
"""Records between the opening of an incident and its estimate."""

FAULTS = ("kl_blowup", "reward_collapse", "entropy_collapse", "grad_explosion", "length_explosion")


@dataclass
class Compared:
    """How many incidents and cases a run has, and the places that do not agree, as text."""

    incidents: int = 0
    cases: int = 0
    differing: list[str] = field(default_factory=list)

    def compare(self, what: str, dates: dict[str, Any]) -> None:
        """Note the places whose dates differ."""
        if len(set(dates.values())) > 1:
            self.differing.append(f"{what}: {dates}")


class DelayedWorker:
    """Estimates in this process, and has the answers after some polls."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[int, OnsetRequest]] = {}
        self.polls = 0

    def enqueue(self, requests: Iterable[OnsetRequest]) -> None:
        """Queue what is not queued."""
        for request in requests:
            self.waiting.setdefault(request.incident, (self.polls, request))

    def poll(self) -> Iterator[tuple[OnsetRequest, Onset | None]]:
        """The answers that are due."""
        self.polls += 1
        for name, (asked, request) in [*self.waiting.items()]:
            if self.polls - asked >= LAG_RECORDS:
                del self.waiting[name]
                yield request, estimate_onset(request.points, request.suspected_step)


def compare_places(path: Path, records: Sequence[Record]) -> Compared:
    """Compare all places for a run, whose last record is its end; `path` is a new database."""
    settings, run = load_settings({"hold_seconds": 1.0}), records[0].run
    sinks = {
        "slack": Slack(url="https://hooks.slack.com/services/T0/B0/x"),
        "webhook": Webhook(url="https://hooks.example.org/x"),
    }
    compared = Compared()
    with closing(connect(path)) as connection:
        processor = RunProcessor(
            *(run, path, connection, settings, Counters()),
            sinks=sinks,
            read_node=NodeMeasurements,
            live_rings=list,
            clock=lambda: records[-1].time,
        )
        processor.onset_worker = DelayedWorker()
        processor.poll_silences()
        for record in (*records[:-1], *([None] * (LAG_RECORDS + 1))):
            if record is not None:
                processor.process(record)
            for onset in processor.poll_onsets():
                processor.process(onset)
        _compare_open(compared, processor, sinks)
        processor.process(records[-1])
    _compare_stored(compared, RunReader(path), path, run)
    _compare_replay(compared, RunReader(path), records)
    return compared


def _compare_open(compared: Compared, processor: RunProcessor, sinks: dict[str, Any]) -> None:
    state = json.loads(json.dumps(processor.exposition.state()))
    metrics = _metrics(processor)
    status = "\n".join(_format_run(_to_dict(DiscoveredRun("run", "", state))))
    for case in processor.pipeline.current_notifications():
        name = case.incident.name
        dates = {"pipeline": (case.onset_step, case.last_good_step)}
        shown = next((each for each in state["cases"] if each["name"] == name), None)
        if shown is None:
            # Its incidents are clear, and it is over after their cooldown.
            continue
        dates["page"] = shown["onset_step"], shown["last_good_step"]
        message = shown["message"]
        dates["text of the page"] = _dates_of_text(message["since"], message["checkpoint"])
        short = name.partition("/")[2]
        steps = [
            metrics.get((f"sentinel_case_{each}", short))
            for each in ("onset_step", "last_good_step")
        ]
        dates["metrics"] = steps[0], steps[1]
        for sink, notification in _queued(processor, name):
            body = json.loads(sinks[sink].render(notification, "0" * 32, None).body)
            dates[f"notification to {sink}"] = notification.onset_step, notification.last_good_step
            dates[f"body of {sink}"] = _dates_of_text(
                *([body["sentinel"][part] for part in ("since", "checkpoint")])
                if sink == "webhook"
                else _parts_of_slack(body)
            )
        compared.compare(f"open case {name}", dates)
        if message["since"] not in status or message["checkpoint"] not in status:
            compared.differing.append(f"open case {name}: not in the status: {message}")
    for incident in processor.pipeline.firing_incidents():
        (shown,) = (each for each in state["incidents"] if each["name"] == incident.name)
        compared.compare(
            f"open incident {incident.name}",
            {
                "pipeline": (incident.onset_step, incident.last_good_step),
                "page": (shown["onset_step"], shown["last_good_step"]),
            },
        )


def _compare_stored(compared: Compared, reader: RunReader, path: Path, run: str) -> None:
    """What is left after the end: incidents, cases, and the report."""
    incidents = {each["name"]: each for each in reader.incidents()}
    cases = reader.cases(has_ages=False)
    compared.incidents, compared.cases = len(incidents), len(cases)
    report = markdown_report(collect_report([ComparedRun(run, reader, stored_state(path, run))]))
    for case in cases:
        dates = {"case": (case["onset_step"], case["last_good_step"])}
        evidence = (case["diagnosis"] or {}).get("evidence", [])
        known = {each["step"] for each in evidence} | {incidents[case["name"]]["onset_step"]}
        if case["onset_step"] not in known:
            compared.differing.append(
                f"case {case['name']}: {case['onset_step']} is of no incident"
            )
        if case["diagnosis"] is None:
            lead = incidents[case["name"]]
            dates["incident"] = lead["onset_step"], lead["last_good_step"]
        began = re.search(r"(?:from|[Aa]t|[Ss]ince|after) step (\d+)", case["message"]["since"])
        if began:
            dates["text"] = int(began.group(1)), case["last_good_step"]
        steps = (case[each] for each in ("onset_step", "opened_step", "resolved_step"))
        row = ["-" if step is None else f"{step:,}" for step in (*steps, case["last_good_step"])]
        if f"| {' | '.join(row)} |" not in report:
            compared.differing.append(f"case {case['name']}: not in the report: {row}")
        compared.compare(f"stored case {case['name']}", dates)


def _compare_replay(compared: Compared, reader: RunReader, records: Sequence[Record]) -> None:
    replayed = replay_records(records, pipeline.build(load_settings()))
    stored = {
        each["name"]: (each["onset_step"], each["last_good_step"]) for each in reader.incidents()
    }
    for each in replayed.incidents:
        incident = each.incident
        dates = {"replay": (incident.onset_step, incident.last_good_step)}
        dates["stored"] = stored[incident.name]
        compared.compare(f"incident {incident.name}", dates)
    cases = {each["name"]: (each["onset_step"], each["last_good_step"]) for each in reader.cases()}
    for case in replayed.cases:
        dates = {"replay": (case.onset_step, case.last_good_step)}
        dates["stored"] = cases[case.incident.name]
        compared.compare(f"case {case.incident.name}", dates)


def _metrics(processor: RunProcessor) -> dict[tuple[str, str], int]:
    text = generate_latest(processor.exposition.registry).decode()
    return {
        (sample.name, sample.labels["case"]): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("sentinel_case_onset_step", "sentinel_case_last_good_step")
    }


def _queued(processor: RunProcessor, name: str) -> Iterator[tuple[str, Notification]]:
    """The newest notification of a case to each sink."""
    rows = processor.connection.execute(
        "select sink, notification from outbox where incident = ? and state != 'merged'"
        " order by rowid",
        [name],
    )
    newest = dict(rows.fetchall())
    return ((sink, notification_codec.decode(text)) for sink, text in newest.items())


def _parts_of_slack(body: dict[str, Any]) -> tuple[str, str]:
    """The sentence with the onset, and the line with the checkpoint, of a Slack message."""
    text = json.dumps(body["blocks"])
    since, checkpoint = (
        re.search(pattern, text) for pattern in (r"(?:At|Since) step \d+", r"good checkpoint.{,60}")
    )
    return since.group() if since else "", checkpoint.group() if checkpoint else ""


def _dates_of_text(since: str, checkpoint: str) -> Dates:
    """The steps that a message states."""
    steps = [re.search(r"step (\d+)", text) for text in (since, checkpoint)]
    onset, good = (None if found is None else int(found.group(1)) for found in steps)
    return -1 if onset is None else onset, good


def made_runs(count: int) -> dict[str, list[Record]]:
    """Runs of reinforcement learning that fall ill at a random step; every second one saves."""
    return {f"made-{n:02}": [*_made_run(n)] for n in range(count)}


def _made_run(number: int) -> Iterator[Record]:
    rng, fault = np.random.default_rng(number), FAULTS[number % len(FAULTS)]
    run, onset, length = f"made-{number:02}", int(rng.integers(120, 180)), 260
    save_steps = int(rng.choice([20, 50])) if number // len(FAULTS) % 2 else 0

    def record(step: int, event: Event = Event.STEP, **values: float) -> Record:
        return Record(run, WHOLE_RUN, step, 1e9 + step, event, values)

    yield record(0, Event.START)
    for step in range(1, length + 1):
        noise, since = rng.normal(0.0, 1.0, 6), max(0, step - onset)
        growth = min(1.15**since, 1e4)
        values = {
            "kl_ref": 0.02 * (1 + 0.1 * abs(noise[0])),
            "reward": 0.6 + 0.05 * noise[1],
            "entropy": 1.2 + 0.03 * noise[2],
            "grad_norm": 1.0 + 0.1 * abs(noise[3]),
            "loss": 2.0 + 0.03 * noise[4],
            "completion_length": 200 + 5 * noise[5],
        }
        if fault == "kl_blowup":
            values["kl_ref"] *= growth
        elif fault == "reward_collapse":
            values["reward"] -= 0.05 * min(since, 12)
        elif fault == "entropy_collapse":
            values["entropy"] *= max(0.97**since, 0.02)
            values["reward"] -= 0.02 * min(max(0, since - 20), 25)
        elif fault == "grad_explosion":
            values["grad_norm"] *= growth
        else:
            values["completion_length"] *= min(1.1**since, 20.0)
        yield record(step, **{name: float(value) for name, value in values.items()})
        if save_steps and step % save_steps == 0:
            yield record(step, Event.SAVE)
    yield replace(record(length, Event.STOP), attributes={"outcome": "finished"})
