"""State of a run as plain data: the JSON of `/api/run` and of `sentinel status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from sentinel.metrics.run_state import RunState, worst_rank
from sentinel.model.evidence_text import UNITS, evidence_text, in_words
from sentinel.model.json_safe import JsonObject
from sentinel.model.notification import Notification
from sentinel.model.rank_stack import parse_stacks
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.coverage import Coverage, coverage_text
from sentinel.signals.hardware import NodeMeasurements
from sentinel.signals.run_metadata import NAME_KEY, PROJECT_KEY, TAGS_KEY, split_tags
from sentinel.store.cases import case_fields, case_with_message, urgency
from sentinel.store.history import incident_to_dict
from sentinel.store.silences import silence_to_dict

MAX_CURRENT_VALUES = 3
"""Signals of a case whose newest values its text states."""
MAX_REPORTED_CASES = 8
MAX_REPORTED_CHARS = 400


def run_state_to_dict(run_state: RunState, now: float) -> dict[str, Any]:
    """The state as plain data at the time `now`; values may be NaN or infinite.

    Keys: run, attempt, training (its number in the run), state, active, step, steps, checkpoints,
    last_step_time and last_checkpoint_time (seconds since the epoch, NaN before the first),
    last_checkpoint_step (None before it), last_checkpoint_path (empty if not known), started,
    ended (None while it runs), host, project, tags, metadata (texts and settings by name), patches
    (by integration, then by status, the ranks with that status), signals (value, its step, unit,
     help, metric, and over ranks min, max, mean, std, worst_rank), logged, monitored (signals
    that detectors read), unmonitored (keys with their nearest signal), coverage (what is not
    monitored as text, mostly empty), liveness, stacks (while no step completes, of the ranks at
    each place), cases (by `urgency`, each with the text of its notification, see
    `case_with_message`, and `now`, see `with_current_values`), incidents (with silenced and
    acknowledged, case and diagnosis), silences, tier, ranks (those shown singly), ranks_hidden (the
    number of others).
    """
    alerts, texts = run_state.alerts, run_state.reported.texts
    cases = sorted((case_with_message(each, now) for each in alerts.open_cases), key=urgency)
    case_by_incident = {name: case for case in cases for name in case["incidents"]}
    incidents = [
        incident_to_dict(incident)
        | alerts.suppression.suppression_fields(incident)
        | case_fields(case_by_incident.get(incident.name))
        for incident in alerts.open_incidents.values()
    ]
    signals = {name: _signal_to_dict(run_state, name) for name in run_state.signals}
    return {
        "run": run_state.run,
        "name": texts.get(NAME_KEY, ""),
        "attempt": max(run_state.attempt, 0),
        "training": run_state.training,
        "state": run_state.state,
        "active": run_state.is_active,
        "step": run_state.step,
        "steps": run_state.step_count,
        "checkpoints": run_state.checkpoint_count,
        "last_step_time": run_state.last_step_time,
        "last_checkpoint_time": run_state.last_checkpoint_time,
        "last_checkpoint_step": run_state.last_checkpoint_step,
        "last_checkpoint_path": run_state.last_checkpoint_path,
        "started": run_state.start_time,
        "ended": None if isnan(run_state.end_time) else run_state.end_time,
        "host": texts.get("host", ""),
        "project": texts.get(PROJECT_KEY) or texts.get("project", ""),
        "tags": split_tags(texts.get(TAGS_KEY, "")),
        "metadata": {**run_state.reported.settings, **texts},
        "patches": _patches_to_dict(run_state.reported.patches),
        "signals": signals,
        "logged": run_state.logged,
        **_coverage_to_dict(run_state.coverage),
        "liveness": run_state.liveness,
        "stacks": [asdict(stack) for stack in parse_stacks(run_state.stacks)],
        "cases": with_current_values(cases, incidents, signals, is_live=run_state.is_active),
        "incidents": incidents,
        "silences": [silence_to_dict(silence) for silence in alerts.suppression.silences],
        "tier": alerts.suppression.tier.value,
        "ranks": {str(rank): state._asdict() for rank, state in run_state.shown_ranks.items()},
        "ranks_hidden": run_state.rank_selection.hidden_count,
    }


def with_current_values(
    cases: Sequence[JsonObject],
    incidents: Sequence[JsonObject],
    signals: Mapping[str, JsonObject],
    *,
    is_live: bool,
) -> list[JsonObject]:
    """The cases with the key `now`: the newest values of the signals of their open incidents.

    It is one sentence, empty without such a signal. The text of a case is of when it was found.
    """
    return [
        each
        | {"now": _values_text(_signals_of(each, incidents, signals), signals, is_live=is_live)}
        for each in cases
    ]


def _signals_of(
    case: JsonObject, incidents: Sequence[JsonObject], signals: Mapping[str, JsonObject]
) -> list[str]:
    """The signals of the incidents of a case, those of the lead first."""
    names: list[str] = []
    by_name = {incident["name"]: incident for incident in incidents}
    for incident in filter(None, map(by_name.get, case["incidents"])):
        # An incident of values that are not finite names each of them.
        texts = [name for name, value in incident["evidence"].items() if isinstance(value, str)]
        shown = [name for name in texts if name in signals] or [incident["signal"]]
        names += [name for name in shown if name in signals and name not in names]
    return names[:MAX_CURRENT_VALUES]


def _values_text(names: Sequence[str], signals: Mapping[str, JsonObject], *, is_live: bool) -> str:
    """Values with units and step, as in "Now, at step 1,250: KL to the reference 12 nats."."""
    by_step: dict[int, list[str]] = {}
    for name in names:
        signal = signals[name]
        key = f"{name}_{signal['unit']}" if signal["unit"] in UNITS else name
        value = evidence_text(key, signal["value"]).partition(": ")[2]
        by_step.setdefault(signal["step"], []).append(f"{in_words(name)} {value}")
    texts = [
        f"at step {step:,}: {', '.join(values)}"
        for step, values in sorted(by_step.items(), reverse=True)
    ]
    return f"{'Now' if is_live else 'Last'}, {'; '.join(texts)}." if texts else ""


def run_report(run_state: RunState) -> dict[str, Any]:
    """What the head judges, for `sentinel status` on the other nodes.

    Keys: state, step (None before the first), and cases, each with severity and text.
    """
    cases = sorted(run_state.alerts.open_cases, key=lambda each: each.incident.severity.order)
    return {
        "state": run_state.state,
        "step": run_state.step,
        "cases": [
            {"severity": each.incident.severity.value, "text": _case_text(each)}
            for each in cases[:MAX_REPORTED_CASES]
        ],
    }


def _case_text(case: Notification) -> str:
    """The cause, if one is known, and what its first incident found."""
    cause = "" if case.diagnosis is None else f"{case.diagnosis.title}: "
    return f"{cause}{case.incident.finding.summary}"[:MAX_REPORTED_CHARS]


def machine_to_dict(machine: NodeMeasurements) -> dict[str, Any]:
    """The newest measurements of the node. Keys: host, disks, gpus, seen (time by part)."""
    gpus = [
        {
            "gpu": gpu.index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "up": not gpu.is_lost,
            "ranks": list(machine.ranks_by_gpu.get(gpu.index, ())),
            "throttled": list(gpu.throttle_reasons),
            **gpu.values,
        }
        for gpu in machine.gpus
    ]
    return {
        "host": dict(machine.host_values),
        "disks": dict(machine.free_bytes),
        "gpus": gpus,
        "seen": dict(machine.measured_at),
    }


def _coverage_to_dict(coverage: Coverage) -> dict[str, Any]:
    unmonitored = coverage.unmonitored if coverage.is_settled else []
    is_blind = coverage.is_settled and coverage.is_blind
    return {
        "monitored": coverage.monitored,
        "unmonitored": [each._asdict() for each in unmonitored],
        "coverage": coverage_text(is_blind, unmonitored),
    }


def _patches_to_dict(patches: Mapping[tuple[str, int], str]) -> dict[str, dict[str, list[int]]]:
    ranks_by_status: dict[str, dict[str, list[int]]] = {}
    for (name, rank), status in sorted(patches.items()):
        ranks_by_status.setdefault(name, {}).setdefault(status, []).append(rank)
    return ranks_by_status


def _signal_to_dict(run_state: RunState, name: str) -> dict[str, Any]:
    signal, spread = SIGNALS[name], run_state.spreads.get(name)
    fields: dict[str, Any] = {
        "value": run_state.signals[name],
        "step": run_state.signal_steps[name],
        "unit": signal.unit,
        "help": signal.help,
        "metric": signal.metric,
    }
    if spread is not None:
        fields |= {"min": spread.min, "max": spread.max, "mean": spread.mean, "std": spread.std}
        fields["worst_rank"] = worst_rank(spread)
    return fields
