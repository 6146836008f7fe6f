"""What a backtest found and what changes between settings, as plain data for JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from sentinel.backtest.backtest import Backtest, BacktestRun
from sentinel.backtest.recommendation import (
    Rate,
    Recommendation,
    false_rate,
    found_and_faults,
)
from sentinel.backtest.run_replay import FoundIncident


def summarize(
    backtest: Backtest, recommendation: Recommendation | None, budget: float
) -> dict[str, Any]:
    """Keys: settings, runs, changes, marks, skipped, budget and recommendation.

    `settings`, the current ones first: name, assignments (nested tables), notifications, per_run,
    per_run_day (None if no run has times), run_days, false (`rate_to_dict` of the judged runs;
    None without any), found (faults with a notification) and faults (how many there are).
    `runs`: name, is_healthy, is_judged, steps, days (None if not known), notes, and notifications:
    for each settings a list. `changes` against the current settings: settings, run, change
    (appeared, gone or changed), the incident, as it was `before` if it changed, and delay (steps
    from the former notification to that of the incident). `marks`: run, case, mark, and steps: for
    each settings the step of its first notification, None if it is gone. `recommendation` is None
    if there are no other settings; its `toml` belongs in its `file` and replaces the settings in
    `replaced`.
    """
    return {
        "settings": [*_settings(backtest)],
        "runs": [_run(run) for run in backtest.runs],
        "changes": [*_changes(backtest)],
        "marks": [*_marks(backtest)],
        "skipped": [
            {"name": each.name, "path": str(each.path), "reason": each.reason}
            for each in backtest.skipped
        ],
        "budget": budget,
        "recommendation": recommendation and _recommendation(backtest, recommendation),
    }


def rate_to_dict(rate: Rate) -> dict[str, Any]:
    """Keys: count, run_days, per_run_day, and its limits at 95 %, low and high."""
    low, high = rate.limits
    return {
        "count": rate.count,
        "run_days": rate.days,
        "per_run_day": rate.per_day,
        "low": low,
        "high": high,
    }


def _settings(backtest: Backtest) -> Iterator[dict[str, Any]]:
    runs = backtest.runs
    has_judged = any(run.is_judged and run.days > 0 for run in runs)
    timed = [run for run in runs if run.days > 0]
    days = sum(run.days for run in timed)
    for number, variant in enumerate(backtest.variants):
        count = sum(run.notification_count(number) for run in runs)
        found, faults = found_and_faults(runs, number)
        in_days = sum(run.notification_count(number) for run in timed)
        yield {
            "name": variant.name,
            "assignments": variant.tree,
            "notifications": count,
            "per_run": count / len(runs) if runs else None,
            "per_run_day": in_days / days if days else None,
            "run_days": days,
            "false": rate_to_dict(false_rate(runs, number)) if has_judged else None,
            "found": found,
            "faults": faults,
        }


def _run(run: BacktestRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "is_healthy": run.is_healthy,
        "is_judged": run.is_judged,
        "steps": run.findings[0].steps,
        "days": run.days or None,
        "notes": [*run.findings[0].notes],
        "notifications": [
            [asdict(each) for each in findings.notifications] for findings in run.findings
        ],
    }


def _changes(backtest: Backtest) -> Iterator[dict[str, Any]]:
    for number, variant in enumerate(backtest.variants[1:], 1):
        for run in backtest.runs:
            before, after = run.findings[0].incidents, run.findings[number].incidents
            found = compare_incidents(before, after)
            at = {"settings": variant.name, "run": run.name}
            for incident in found.appeared:
                yield at | {"change": "appeared"} | _incident(incident)
            for incident in found.gone:
                yield at | {"change": "gone"} | _incident(incident)
            for old, new in found.changed:
                delay = new.opened_step - old.opened_step
                body = {"change": "changed", "before": asdict(old), "delay": delay}
                yield at | body | _incident(new)


def _marks(backtest: Backtest) -> Iterator[dict[str, Any]]:
    for run in backtest.runs:
        for case in run.marks.cases:
            steps = [case.steps.first_of(each.notifications) for each in run.findings]
            mark = "useful" if case.is_useful else "false"
            yield {"run": run.name, "case": case.name, "mark": mark, "steps": steps}


def _incident(incident: FoundIncident) -> dict[str, Any]:
    return {"incident": asdict(incident)}


def _recommendation(backtest: Backtest, made: Recommendation) -> dict[str, Any]:
    variant = None if made.variant is None else backtest.variants[made.variant]
    left_out = made.left_out
    return {
        "settings": variant and variant.name,
        "assignments": variant and variant.tree,
        "toml": variant and variant.toml,
        "file": variant and str(variant.file),
        "replaced": [*variant.replaced] if variant else [],
        "reason": made.reason,
        "false": None
        if made.variant is None
        else rate_to_dict(false_rate(backtest.runs, made.variant)),
        "left_out": left_out
        and {
            "false": rate_to_dict(left_out.false),
            "faults": left_out.faults,
            "found": left_out.found,
            "lost": [*left_out.lost],
            "undecided": left_out.undecided,
            "choices": [
                {"settings": backtest.variants[number].name, "runs": count}
                for number, count in Counter(left_out.choices).most_common()
            ],
        },
        "needed_run_days": made.needed_days,
        "needed_runs": made.needed_runs,
    }


@dataclass(frozen=True, slots=True)
class IncidentChanges:
    """The incidents that appear, those that go, and pairs of those that both settings find.

    Of the pairs, those that are equal are left out.
    """

    appeared: list[FoundIncident] = field(default_factory=list)
    gone: list[FoundIncident] = field(default_factory=list)
    changed: list[tuple[FoundIncident, FoundIncident]] = field(default_factory=list)


def compare_incidents(
    before: Iterable[FoundIncident], after: Iterable[FoundIncident]
) -> IncidentChanges:
    """Pair the incidents of a detector and rank that are there at the same steps, in order."""
    changes = IncidentChanges()
    old, new = _by_detector(before), _by_detector(after)
    for key in dict.fromkeys([*old, *new]):
        _pair(old.get(key, []), new.get(key, []), changes)
    for found in (changes.appeared, changes.gone):
        found.sort(key=lambda each: each.opened_step)
    return changes


def _by_detector(
    incidents: Iterable[FoundIncident],
) -> dict[tuple[str, int | None], list[FoundIncident]]:
    found = defaultdict(list)
    for each in incidents:
        found[each.detector, each.rank].append(each)
    return {
        key: sorted(several, key=lambda each: each.opened_step) for key, several in found.items()
    }


def _pair(
    before: Sequence[FoundIncident], after: Sequence[FoundIncident], changes: IncidentChanges
) -> None:
    left = [*before]
    for incident in after:
        match = next((each for each in left if _overlap(each, incident)), None)
        if match is None:
            changes.appeared.append(incident)
            continue
        left.remove(match)
        if match != incident:
            changes.changed.append((match, incident))
    changes.gone.extend(left)


def _overlap(one: FoundIncident, other: FoundIncident) -> bool:
    return _first(one) <= _last(other) and _first(other) <= _last(one)


def _first(incident: FoundIncident) -> float:
    return min(incident.onset_step, incident.opened_step)


def _last(incident: FoundIncident) -> float:
    return inf if incident.resolved_step is None else incident.resolved_step
