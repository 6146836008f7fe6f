"""`sentinel status`: the runs on this machine and their open incidents."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from typing import Any

import typer

UNREACHABLE = "unreachable"


def status(
    json: bool = typer.Option(False, "--json", help="Print one JSON object per run."),
) -> None:
    """Show every run with an agent: what it trains, its step, and its open incidents.

    Exit status: 0, whatever the state of the runs.
    """
    from sentinel.agent.discovery import query_agent, registration_files
    from sentinel.transport.paths import home_dir

    runs = [_to_dict(query_agent(path)) for path in registration_files()]
    for run in runs:
        print(jsonlib.dumps(run) if json else "\n".join(_format_run(run)))
    if not runs and not json:
        print(f"No run has an agent under {home_dir()}.")


def _to_dict(discovered: Any) -> dict[str, Any]:
    from sentinel.doctor.node_status import missing_ranks

    state = discovered.state
    return {
        "run": discovered.run,
        "url": discovered.url,
        "state": state.get("state", UNREACHABLE),
        "step": state.get("step"),
        "cases": state.get("cases", []),
        "incidents": state.get("incidents", []),
        "delivery_problems": state.get("delivery_problems", []),
        "storage": state.get("storage", {}),
        "silences": state.get("silences", []),
        "tier": state.get("tier", "page"),
        "metadata": state.get("metadata", {}),
        "monitored": state.get("monitored", []),
        "unmonitored": state.get("unmonitored", []),
        "coverage": state.get("coverage", ""),
        "patches": state.get("patches", {}),
        "cluster": state.get("cluster", {}),
        "missing_ranks": missing_ranks(state),
        "refused": state.get("refused", {}),
        "late_records": state.get("late_records", 0.0),
        "active": state.get("active", True),
        "error": discovered.problem,
        "remedy": discovered.remedy,
    }


def _format_run(run: dict[str, Any]) -> Iterator[str]:
    from sentinel.cli._terminal import escape_unprintable

    return map(escape_unprintable, _run_lines(run))


def _run_lines(run: dict[str, Any]) -> Iterator[str]:
    """The lines about a run, unescaped."""
    from sentinel.doctor.node_status import format_ranks, node_lines, report_lines
    from sentinel.doctor.nodes import problem_lines

    if run["state"] == UNREACHABLE:
        yield f"{run['run']}: {run['error']}; {run['remedy']}"
        return
    yield f"{run['run']}: {_format_state(run)} ({run['url']})"
    if description := format_run_metadata(run["metadata"]):
        yield f"  {description}"
    yield from (f"  {line}" for line in node_lines(run))
    yield from (f"  {line}" for line in problem_lines(run["run"], run))
    yield from (f"  {line}" for line in report_lines(run))
    for problem in run["delivery_problems"]:
        yield f"  {problem['text']} {problem['remedy']}"
    if run["storage"].get("text"):
        yield f"  {run['storage']['text']} {run['storage']['remedy']}"
    for case in run["cases"]:
        yield from (f"  {line}" for line in _case_lines(case, run["incidents"]))
    names = {case["name"] for case in run["cases"]}
    for incident in run["incidents"]:
        if incident.get("case") not in names:
            yield f"  {_format_incident(incident)}"
    if run["coverage"]:
        yield f"  {run['coverage']}"
    for integration, patch_status, ranks in failed_patches(run["patches"]):
        rank_text = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
        yield f"  patch of {integration} is {patch_status} ({rank_text})"


def _format_state(run: dict[str, Any]) -> str:
    """State and step of a run, where it is processed if not here, and its tier."""
    from sentinel.doctor.node_status import describe_head

    head = describe_head(run)
    # The agent of a follower node counts no steps.
    no_step = "" if head else " before its first step"
    step = no_step if run["step"] is None else f" at step {run['step']}"
    tier = "" if run["tier"] == "page" else f"tier {run['tier']}"
    return ", ".join(filter(None, (f"{run['state']}{step}", head, tier)))


def _format_incident(incident: dict[str, Any]) -> str:
    """Severity, detector (the argument of `sentinel ack` and `silence`), summary and notes."""
    detector = f" {incident['detector']}" if "detector" in incident else ""
    return (
        f"{incident['severity']}{detector}: {incident['summary']}{format_incident_notes(incident)}"
    )


def _case_lines(case: dict[str, Any], incidents: list[dict[str, Any]]) -> Iterator[str]:
    """The text of the notification of a case, and the names of its detectors with their notes."""
    message = case["message"]
    yield f"{case['severity'].upper()}: {message['subject']}"
    yield f"  {message['since']}"
    yield from (f"  - {fact}" for fact in message["facts"])
    if message["remedy"]:
        yield f"  What to do: {message['remedy']}"
    if message["checkpoint"]:
        yield f"  Last good checkpoint: {message['checkpoint']}"
    yield from (f"  Also: {text}" for text in message["also"])
    yield from (f"  {note}" for note in message["notes"])
    if case["ranks"]:
        from sentinel.doctor.node_status import format_ranks

        yield f"  Ranks: {format_ranks(case['ranks'])}"
    members = [incident for incident in incidents if incident["case"] == case["name"]]
    detectors = (f"{each['detector']}{format_incident_notes(each)}" for each in members)
    yield f"  Detectors: {', '.join(detectors)}"


def format_run_metadata(metadata: dict[str, Any]) -> str:
    """Framework and version, algorithm, model and number of ranks, as far as they are known.

    >>> format_run_metadata({"framework": "trl", "framework_version": "1.16.0", "world_size": 8.0})
    'trl 1.16.0, 8 ranks'
    """
    framework = " ".join(
        str(metadata[key]) for key in ("framework", "framework_version") if metadata.get(key)
    )
    parts = [framework, *(str(metadata.get(key, "")) for key in ("algorithm", "model"))]
    ranks = metadata.get("world_size")
    if isinstance(ranks, float):
        parts.append(f"{ranks:.0f} rank{'s' if ranks != 1 else ''}")
    return ", ".join(filter(None, parts))


def format_incident_notes(incident: dict[str, Any]) -> str:
    """Onset, checkpoint, acknowledgement and silence of an incident, in parentheses.

    >>> ack = {"author": "ana", "comment": "looking at it"}
    >>> format_incident_notes({"acknowledged": ack, "silenced": None, "flaps": 2})
    ' (fired again 2 times; acknowledged by ana: looking at it)'
    >>> onset = {"step": 41, "earliest": 38, "latest": 44, "last_good_step": 30}
    >>> format_incident_notes({"onset": onset})
    ' (began at step 41, between 38 and 44; last checkpoint before: step 30)'
    """
    from sentinel.store.silences import format_utc_time, with_author

    notes = []
    good_step, onset = incident.get("last_good_step"), incident.get("onset")
    if onset:
        is_exact = onset["earliest"] == onset["latest"]
        bounds = "" if is_exact else f", between {onset['earliest']} and {onset['latest']}"
        notes.append(f"began at step {onset['step']}{bounds}")
        good_step = onset["last_good_step"]
    if good_step is not None:
        notes.append(f"last checkpoint before: step {good_step}")
    if flaps := incident.get("flaps"):
        notes.append(f"fired again {flaps} times" if flaps > 1 else "fired again once")
    for kind in ("acknowledged", "silenced"):
        if entry := incident.get(kind):
            until = f" until {format_utc_time(entry['ends_at'])}" if "ends_at" in entry else ""
            notes.append(with_author(f"{kind}{until}", entry["author"], entry["comment"]))
    return f" ({'; '.join(notes)})" if notes else ""


def failed_patches(
    patches: dict[str, dict[str, list[int]]],
) -> Iterator[tuple[str, str, list[int]]]:
    """Integration, status and ranks of each patch that is not fully on.

    >>> list(failed_patches({"trl": {"on": [0], "off: KeyError in on_log": [1, 2]}}))
    [('trl', 'off: KeyError in on_log', [1, 2])]
    """
    for integration, ranks_by_status in sorted(patches.items()):
        for patch_status, ranks in sorted(ranks_by_status.items()):
            if patch_status != "on":
                yield integration, patch_status, ranks
